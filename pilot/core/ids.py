"""Identifiers. Plain strings and integers at run time; distinct types to the checker."""

from __future__ import annotations

import re
from typing import NewType

NodeId = NewType("NodeId", str)
"""One host held by one pilot, unique in the pool. In traces the hostname, live ``hostname.pilot``."""

TrainerId = NewType("TrainerId", str)
"""One elastic training task, as the user named it or as the coordinator numbered it."""

TrainerUid = NewType("TrainerUid", str)
"""Tells a trainer from all others, even those of the same name in other pools: 128 random bits, drawn when it is
submitted, as 32 hexadecimal digits."""

NO_UID = TrainerUid("")
"""For a trainer that was submitted to a version that drew none."""

StudyId = NewType("StudyId", str)
"""One study, as the user named it; its trials are the trainers ``<study>-<number>``."""

Generation = NewType("Generation", int)
"""A trainer's monotonic fence: every regroup increments it. The first group of a trainer has generation 1, or one
more than the checkpoint that it was submitted to start from."""

NO_GENERATION = Generation(0)
"""Before a trainer's first group."""

PlanId = NewType("PlanId", int)
"""Numbers the solves of one coordinator; a plan with another id than the newest one asked for is stale."""

NO_PLAN = PlanId(0)
"""Before the first solve."""

_DIGITS = re.compile(r"(\d+)")


def natural_key(node: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key of the natural hostname order: ``n2`` before ``n10``. Total on all strings."""
    parts = _DIGITS.split(node)
    return tuple((1, int(part), part) if _is_number(part) else (0, 0, part) for part in parts)


def _is_number(part: str) -> bool:
    return len(part) < 1000 and part.isdecimal() and part.isascii()  # Python parses no number of many more digits
