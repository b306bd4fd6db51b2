"""Findings of ``pilot doctor``: a grade, an observation, and its remedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from pilot.protocol.pool_status import Answer


class Grade(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    """It works now, but will cause trouble some day or in some uses."""
    FAIL = "fail"
    """Pilots, training or recovery will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for the user."""

    check: str  #: the name of the check
    grade: Grade  #: how bad it is
    seen: str  #: the observation
    remedy: str = ""  #: how to fix it; empty: nothing to fix


class Findings(Answer, frozen=True):
    """The findings of ``pilot doctor``."""

    findings: list[Finding]  #: in the order of the checks; a check may have several, or none


def ok(check: str, seen: str) -> Finding:
    """A finding with nothing to fix."""
    return Finding(check, Grade.OK, seen)


def warn(check: str, seen: str, remedy: str) -> Finding:
    """A finding that should be fixed some day."""
    return Finding(check, Grade.WARN, seen, remedy)


def ok_if(good: bool, check: str, seen: str, remedy: str, otherwise: Callable[[str, str, str], Finding]) -> Finding:
    """The finding ``ok`` if ``good``, ``otherwise`` with a remedy."""
    return ok(check, seen) if good else otherwise(check, seen, remedy)


def fail(check: str, seen: str, remedy: str) -> Finding:
    """A finding that must be fixed now."""
    return Finding(check, Grade.FAIL, seen, remedy)
