"""A look that fails ends no training."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.train.script import harmless

FAILED = harmless.failed


@pytest.fixture(autouse=True)
def as_for_users(sound_looks: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # noqa: ARG001  # it comes first
    monkeypatch.setattr(harmless, "failed", FAILED)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_a_look_that_fails_is_one_line_and_the_last(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looked: list[str] = []

    def fails() -> None:
        looked.append("fails")
        raise KeyError("of ours")

    looks = harmless.Harmless()
    looks.look(lambda: looked.append("first"), fails, lambda: looked.append("then"))
    looks.look(lambda: looked.append("later"))
    assert looked == ["first", "fails"]
    (line,) = capsys.readouterr().err.splitlines()
    (log,) = (tmp_path / "pilot").iterdir()
    assert "training goes on" in line
    assert str(log) in line
    assert "KeyError: 'of ours'" in log.read_text()


def test_what_it_refuses_is_refused() -> None:
    looks = harmless.Harmless()

    def refuses() -> None:
        raise UserError("this is not possible")

    for _ in range(2):
        with pytest.raises(UserError, match="not possible"):
            looks.look(refuses)
