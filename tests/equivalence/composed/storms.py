"""Compositions in storms: ranks come, die and leave, steps are void, and a run resumes from a state on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from tests.equivalence.composed.covering import Composition
from tests.equivalence.composed.script import Composed
from tests.equivalence.loops import Plain, Result, session
from tests.equivalence.rows import assert_agree, in_world
from tests.unit.train.storm import End, Keep


def scripted(chosen: Composition, made: Callable[..., Any]) -> Result:
    """A run of the composition."""
    return Composed(made, chosen).run()


def storm(drawn: random.Random) -> list[End]:
    """How generations end: by a few of these events, in a row."""
    return [end for _ in range(drawn.randrange(4)) for end in drawn.choice(EVENTS)(drawn)]


def _anything(drawn: random.Random) -> list[End]:
    end = End(drawn.randrange(1, 15), _flags(drawn), _flags(drawn), drawn.randrange(3), drawn.random() < 0.3)
    return [replace(end, heir=_heir(drawn))]


def _exchange(drawn: random.Random) -> list[End]:
    """All but one die, perhaps the first rank, as others come."""
    return [End(drawn.randrange(12), _flags(drawn), (True,), drawn.randrange(1, 3), heir=_heir(drawn))]


def _succession(drawn: random.Random) -> list[End]:
    """One comes, and soon is the only one: before its first step, in it, or after it."""
    comes = End(drawn.randrange(12), (True,), (False,), 1)
    return [comes, End(drawn.randrange(6), _flags(drawn), (True,), 0, drawn.random() < 0.3, heir="newest")]


def _void(drawn: random.Random) -> list[End]:
    """Void steps in a row, to the first of which perhaps others come."""
    void = End(0, (False,), (False,), 0, void=True, at="step")
    return [replace(void, operation=drawn.randrange(8), come=drawn.randrange(3)), *[void] * drawn.randrange(1, 3)]


def _meeting(drawn: random.Random) -> list[End]:
    """In an evaluation, or at an epoch's end."""
    end = End(drawn.randrange(9), _flags(drawn), _flags(drawn), drawn.randrange(3), drawn.random() < 0.3, "agreement")
    return [replace(end, heir=_heir(drawn))]


EVENTS: list[Callable[[random.Random], list[End]]] = [_anything, _exchange, _succession, _void, _meeting]


def _flags(drawn: random.Random) -> tuple[bool, ...]:
    return tuple(drawn.random() < 0.5 for _ in range(drawn.randrange(1, 4)))


def _heir(drawn: random.Random) -> str:
    return drawn.choice(["oldest", "newest"])


def assert_stormy(chosen: Composition, seed: int) -> None:
    """Through one storm, and through others that each resume from a state on the way of the one before, on other
    numbers of ranks.
    """
    drawn = random.Random(seed)
    (_, ends), kept = _alone((*chosen.items(),)), None
    for count in drawn.sample(range(1, 4), 3):
        since = kept["position"]["step"] if kept else 0
        kept = assert_equal(chosen, count, storm(drawn), begin=kept, keep=_keep(drawn, since, ends))


@cache
def _alone(chosen: tuple[tuple[str, str], ...]) -> tuple[Result, list[int]]:
    """What the plain loop has, and after how many steps its epochs have ended."""
    script = Composed(Plain, dict(chosen))
    result = script.run()
    return result, [*script.session.ended, script.session.steps]


def _keep(drawn: random.Random, since: int, ends: list[int]) -> Keep:
    """After some step from ``since`` on; every other time at an epoch's end or beginning."""
    between = [step for step in (0, *ends) if since <= step]
    step = drawn.choice(between) if drawn.random() < 0.5 else drawn.randrange(since, ends[-1] + 1)
    return Keep(step, drawn.randrange(12))


def assert_equal(chosen: Composition, count: int, ends: Iterable[End], **options: Any) -> dict[str, Any] | None:
    """The ranks have what the plain loop has, and agree to the last bit; returns the state kept on the way."""
    expected, _ = _alone((*chosen.items(),))
    world, ranks = in_world(lambda: scripted(chosen, session), count, [*ends], **options)
    assert_agree(ranks, expected, 1e-9)
    return world.kept_state
