"""Compositions in storms: ranks come, die and leave, steps are void, and a run resumes from a state on the way."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from tests.equivalence.composed.covering import Composition
from tests.equivalence.composed.plain_loop import PlainLoop
from tests.equivalence.composed.script import Composed
from tests.equivalence.loops import Result, session
from tests.equivalence.rows import in_world
from tests.unit.train.storm import End


def scripted(chosen: Composition, made: Callable[..., Any]) -> Result:
    """A run of the composition."""
    return Composed(made, chosen).run()


def storm(drawn: random.Random) -> tuple[int, list[End]]:
    """The initial number of ranks, and how generations end."""
    ends = [
        End(drawn.randrange(1, 15), _flags(drawn), _flags(drawn), drawn.randrange(3), drawn.random() < 0.3)
        for _ in range(drawn.randrange(4))
    ]
    return drawn.randrange(1, 4), ends


def _flags(drawn: random.Random) -> tuple[bool, ...]:
    return tuple(drawn.random() < 0.5 for _ in range(drawn.randrange(1, 4)))


def assert_stormy(chosen: Composition, seed: int) -> None:
    """Through one storm, and through another one that resumes from the first one's state after some step."""
    drawn = random.Random(seed)
    last = int(scripted(chosen, PlainLoop)["steps.0"])
    kept = assert_equal(chosen, *storm(drawn), keep_at=drawn.randrange(1, last))
    assert_equal(chosen, *storm(drawn), begin=kept)


def assert_equal(chosen: Composition, count: int, ends: Iterable[End], **options: Any) -> dict[str, Any] | None:
    """The ranks have what the plain loop has, and agree to the last bit; returns the state kept on the way."""
    expected = scripted(chosen, PlainLoop)
    world, ranks = in_world(lambda: scripted(chosen, session), count, [*ends], **options)
    for rank in ranks:
        assert rank.keys() == expected.keys()
        for name, value in expected.items():
            for other, tolerance in ((ranks[0][name], 0.0), (value, 1e-9)):
                message = partial("{}: {}".format, name)
                torch.testing.assert_close(rank[name], other, rtol=tolerance, atol=tolerance, msg=message)
    return world.kept
