"""Tests create many sessions in one process, which a script may not."""

from __future__ import annotations

import importlib

import pytest

from pilot.train.ranks import script_end


@pytest.fixture(autouse=True)
def many_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test may create sessions; those that it left by ``break`` are discarded, with their memory, when it ends."""
    monkeypatch.setattr(importlib.import_module("pilot.train.joining"), "_claim", lambda: None)
    monkeypatch.setattr(script_end, "_left", [])
