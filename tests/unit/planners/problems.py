"""Small problems, and their properties by trying all counts."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Candidate, Problem

NAMES = tuple(map(TrainerId, "abcdefgh"))


def candidate(
    now: int = 0, low: int = 1, high: int = 8, curve: Curve | None = None, up_s: float = 20.0, down_s: float = 10.0
) -> Candidate:
    return Candidate(TrainerId("?"), now, low, high, curve or Curve.proportional(), up_s, down_s)


def problem(nodes: int, *candidates: Candidate, t_fwd_s: float = 120.0) -> Problem:
    """A problem whose candidates are called a, b, … in this order."""
    named = [replace(c, trainer=name) for name, c in zip(NAMES, candidates, strict=False)]
    return Problem(nodes, t_fwd_s, tuple(named))


def every_plan(given: Problem) -> Iterator[tuple[int, ...]]:
    """All counts that respect the sizes, the pins and the capacity."""
    sizes = [[n for n in range(given.nodes + 1) if c.allows(n)] for c in given.candidates]
    return (counts for counts in itertools.product(*sizes) if sum(counts) <= given.nodes)


def value(given: Problem, counts: Sequence[int]) -> float:
    return given.objective({c.trainer: n for c, n in zip(given.candidates, counts, strict=True)})


def best_value(given: Problem) -> float:
    """The optimum."""
    return max(value(given, counts) for counts in every_plan(given))


def best_plan(given: Problem) -> tuple[int, ...]:
    """The optimal counts: ties go to the fewest changes, then to the earliest trainers."""
    optimum = best_value(given)
    scale = max(1.0, abs(optimum))
    ties = [counts for counts in every_plan(given) if optimum - value(given, counts) <= 1e-9 * scale]
    return min(ties, key=lambda counts: (changes(given, counts), [-n for n in counts]))


def changes(given: Problem, counts: Sequence[int]) -> int:
    return sum(n != c.current_nodes for n, c in zip(counts, given.candidates, strict=True))
