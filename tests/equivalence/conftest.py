"""Tests make many sessions in one process, which a script may not."""

from __future__ import annotations

import importlib

import pytest


@pytest.fixture(autouse=True)
def many_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("pilot.train.group"), "_claim", lambda: None)
