"""Objectives of users, loaded by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.core.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.spec import TrainerSpec
from pilot.service.settings import load_objective

CHATTY = """
print("imported")
def value(trainer, nodes):
    print("asked")
    return 2.0 * nodes
"""


def test_what_an_objective_prints_goes_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "chatty_of_this_test.py").write_text(CHATTY)
    objective = load_objective("chatty_of_this_test:value")
    assert objective(TrainerSpec(TrainerId("t1"), max_nodes=2), Curve.of([(1, 10.0)])).at(2) == 4.0
    told = capsys.readouterr()
    assert (told.out, set(told.err.splitlines())) == ("", {"imported", "asked"})
