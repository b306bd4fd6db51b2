"""What ``pilot doctor`` found: a grade, what was seen, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pilot.io.pool_status import Told


class Grade(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works now, but will cause trouble some day or in some uses."""
    FAIL = "fail"
    """Pilots, training or recovery will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for the user.

    Parameters
    ----------
    check : what was checked
    grade : how bad it is
    seen : what was found
    remedy : how to fix it; empty: nothing to fix
    """

    check: str
    grade: Grade
    seen: str
    remedy: str = ""


class Findings(Told, frozen=True):
    """What ``pilot doctor`` found.

    Parameters
    ----------
    findings : in the order of the checks; a check may have several, or none
    """

    findings: list[Finding]


def ok(check: str, seen: str) -> Finding:
    """Nothing to fix."""
    return Finding(check, Grade.OK, seen)


def warn(check: str, seen: str, remedy: str) -> Finding:
    """Should be fixed some day."""
    return Finding(check, Grade.WARN, seen, remedy)


def fail(check: str, seen: str, remedy: str) -> Finding:
    """Must be fixed now."""
    return Finding(check, Grade.FAIL, seen, remedy)
