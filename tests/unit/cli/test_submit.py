"""``pilot submit`` says where a trainer stands that does not start at once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from pilot.cli import submit
from pilot.protocol.requests import Submitted

WAITS = Submitted("t2", "/d", 1, 1050.0, "number 1 of 1 waiting trainer", "waiting for another trainer to end")


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (Submitted("t2", "/d"), []),
        (WAITS, ["it waits: number 1 of 1 waiting trainer; waiting for another trainer to end"]),
    ],
)
def test_it_is_one_line(answer: Submitted, lines: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(submit, "prepared", lambda *_, **__: (tmp_path, None, None))
    monkeypatch.setattr(submit, "pool_at", lambda _: SimpleNamespace(submit=lambda _: answer))
    script = tmp_path / "train.py"
    script.touch()
    shown = CliRunner().invoke(submit.command, [str(script)], catch_exceptions=False).output.splitlines()
    assert shown == ["submitted t2; its files: /d", *lines]
    told = json.loads(CliRunner().invoke(submit.command, ["--json", str(script)], catch_exceptions=False).output)
    assert (told["place"], told["expected_start_s"]) == (answer.place, answer.expected_start_s)
