"""The verdict of a soak: it finds a leak, even in short-lived processes, and does not mistake a warm-up for one."""

import random
from collections.abc import Callable, Iterator

from tests.soak.samples import EVERY_S, POOL, Sample
from tests.soak.trends import trends

HOURS = 2
LIFE_S = 1500.0


def of_agents(mib: Callable[[float, float], float], life_s: float = LIFE_S, who: str = "agent") -> Iterator[Sample]:
    """Agents that live for 25 minutes each; ``mib``: a function of (time, age), to which some noise is added."""
    dice = random.Random(1)
    for number in range(int(HOURS * 3600 / EVERY_S)):
        at_s = number * EVERY_S
        life, age_s = divmod(at_s, life_s)
        yield Sample(at_s, who, 100 + int(life), "anonymous MiB", mib(at_s, age_s) + dice.gauss(0, 0.3))


def verdict(samples: Iterator[Sample]) -> str:
    (trend,) = trends(list(samples))
    return trend.verdict


def test_what_only_varies_is_flat() -> None:
    assert verdict(of_agents(lambda _, __: 24.0)) == "flat"


def test_a_leak_is_found_although_no_process_lives_long() -> None:
    assert verdict(of_agents(lambda _, age_s: 24.0 + 3 * age_s / 3600)) == "grows"


def test_what_grows_less_than_the_bound_is_flat() -> None:
    assert verdict(of_agents(lambda _, age_s: 24.0 + 0.5 * age_s / 3600)) == "flat"


def test_a_warm_up_is_no_leak() -> None:
    assert verdict(of_agents(lambda _, age_s: 24.0 + min(age_s, 100) / 10)) == "flat"
    assert verdict(of_agents(lambda at_s, _: 24.0 + min(at_s, 500) / 10)) == "flat"


def test_a_worker_has_longer_to_settle() -> None:
    def settles(_: float, age_s: float) -> float:
        return 24.0 + 2 * min(age_s, 1000) / 1000

    assert verdict(of_agents(settles, 3600, "worker")) == "flat"
    assert verdict(of_agents(settles)) == "grows"
    assert verdict(of_agents(lambda _, age_s: 24.0 + 3 * age_s / 3600, 3600, "worker")) == "grows"


def test_a_folder_that_fills_is_found() -> None:
    files = (Sample(EVERY_S * n, POOL, 0, "other files", n // 10) for n in range(240))
    assert verdict(files) == "grows"


def test_a_short_soak_says_that_it_cannot_tell() -> None:
    files = (Sample(EVERY_S * n, POOL, 0, "other files", n) for n in range(22))
    assert verdict(files) == "too few to tell"
