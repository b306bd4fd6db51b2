"""The verdict of a soak: it finds a leak, even in short-lived processes, and does not mistake a warm-up for one."""

import random
from collections.abc import Callable

import pytest

from tests.soak.samples import EVERY_S, POOL, Sample
from tests.soak.trends import trends

HOURS = 2
LIFE_S = 1500.0


def of_processes(mib: Callable[[float, float], float], life_s: float = LIFE_S, who: str = "agent") -> list[Sample]:
    """Processes that live for so long each; ``mib``: a function of (time, age), to which some noise is added."""
    dice, samples = random.Random(1), []
    for number in range(int(HOURS * 3600 / EVERY_S)):
        at_s = number * EVERY_S
        life, age_s = divmod(at_s, life_s)
        samples.append(Sample(at_s, who, 100 + int(life), "anonymous MiB", mib(at_s, age_s) + dice.gauss(0, 0.3)))
    return samples


def files(count: int, each: int) -> list[Sample]:
    """One more file in each ``each``-th sample."""
    return [Sample(EVERY_S * n, POOL, 0, "other files", n // each) for n in range(count)]


def leaks(mib_per_h: float) -> Callable[[float, float], float]:
    return lambda _, age_s: 24.0 + mib_per_h * age_s / 3600


def settles(_: float, age_s: float) -> float:
    return 24.0 + 2 * min(age_s, 1000) / 1000


@pytest.mark.parametrize(
    ("samples", "verdict"),
    [
        (of_processes(lambda _, __: 24.0), "flat"),
        (of_processes(leaks(3)), "grows"),
        (of_processes(leaks(0.5)), "flat"),
        (of_processes(lambda _, age_s: 24.0 + min(age_s, 100) / 10), "flat"),
        (of_processes(lambda at_s, _: 24.0 + min(at_s, 500) / 10), "flat"),
        # A worker has longer to settle.
        (of_processes(settles, 3600, "worker"), "flat"),
        (of_processes(settles), "grows"),
        (of_processes(leaks(3), 3600, "worker"), "grows"),
        (files(240, 10), "grows"),
        (files(22, 1), "too few to tell"),
    ],
)
def test_verdicts(samples: list[Sample], verdict: str) -> None:
    (trend,) = trends(samples)
    assert trend.verdict == verdict
