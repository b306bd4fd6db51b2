"""A node that refuses to start a process now and then."""

from __future__ import annotations

import errno
import os

import pytest

from pilot.agent import patience
from pilot.agent.patience import patiently
from pilot.core.errors import UserError


def refusing(times: int, why: int = errno.EAGAIN) -> list[int]:
    """How often :func:`patiently` has tried something that is refused this many times."""
    tried: list[int] = []

    def start() -> str:
        tried.append(1)
        if len(tried) <= times:
            raise OSError(why, os.strerror(why))
        return "started"

    assert patiently(start) == "started"
    return tried


def test_a_refusal_that_passes_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "PAUSE_S", 0.0)
    assert len(refusing(3)) == 4
    assert len(refusing(1, errno.ENOMEM)) == 2


def test_a_lasting_refusal_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LIMIT_S", -1.0)
    with pytest.raises(UserError, match="this node refuses to start a process: Resource temporarily unavailable"):
        refusing(1)


def test_what_is_no_refusal_is_not_tried_again() -> None:
    with pytest.raises(FileNotFoundError):
        refusing(1, errno.ENOENT)
