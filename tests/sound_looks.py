"""A look at a script that fails ends no user's training; here it fails the test."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def sound_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilot.train.script.harmless.failed", _raise_again)


def _raise_again() -> None:
    raise  # the exception that is being handled
