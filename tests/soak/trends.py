"""Whether samples stay flat: the slope of each quantity, with its error, against a stated bound."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tests.soak.samples import Sample

SETTLED_S = 600.0
"""For the pool: growth in its first ten minutes is allowed."""

SETTLED_AGE_S = 300.0
"""For a process in its role: until then it imports, warms up and takes its first steps."""

SLOWLY_SETTLED_S = {"worker": 1200.0, "coordinator": 1200.0}
"""Roles that take longer: a worker settles over its first 2,000 checkpoints (it writes two a second), a coordinator
while its caches of curves and plans fill (128 entries each)."""

_BLOCK_S = 300.0
"""A process's samples within this time count as one, their median: neighbouring ones are not independent."""

_FEWEST_SAMPLES = 5
"""Of a block: brief peaks, as when a process's script ends, do not count."""

_FEWEST_BLOCKS = 6

BOUNDS_PER_H = {
    "anonymous MiB": 1.0,  # 170 MiB a week
    "open files": 1.0,
    "sockets": 1.0,
    "threads": 0.5,
    "journal MiB": 12.0,  # grows with activity: three trainers report once a second, 600 bytes each
    "other files": 4.0,
    "other files MiB": 1.0,  # coordinator.log
    "lasting trainer's files": 4.0,
    "lasting trainer's MiB": 1.0,
    "segments in /dev/shm": 2.0,
    "segments MiB": 2.0,
    "processes per pilot": 0.5,
}
"""The most that a quantity may grow per hour. Quantities not listed (such as shared memory) are shown, not judged."""


@dataclass(frozen=True, slots=True)
class Trend:
    """``slope`` and its standard ``error`` per hour, from ``blocks`` medians; ``by_hour``: the median of each hour."""

    who: str
    quantity: str
    by_hour: tuple[float, ...]
    slope: float
    error: float
    blocks: int

    @property
    def bound(self) -> float | None:
        return BOUNDS_PER_H.get(self.quantity)

    @property
    def verdict(self) -> str:
        """``grows`` if the slope exceeds the bound by more than two standard errors."""
        if self.bound is None:
            return ""
        if self.blocks < _FEWEST_BLOCKS:
            return "too few to tell"
        return "grows" if self.slope - 2 * self.error > self.bound else "flat"


def trends(samples: list[Sample]) -> list[Trend]:
    """The trend of each quantity of each role, in the order of their first samples."""
    series = defaultdict[tuple[str, str], list[Sample]](list)
    for sample in samples:
        series[sample.who, sample.quantity].append(sample)
    return [Trend(who, quantity, _by_hour(of), *_slope(of)) for (who, quantity), of in series.items()]


def _by_hour(samples: list[Sample]) -> tuple[float, ...]:
    hours = defaultdict[int, list[float]](list)
    for sample in samples:
        hours[int(sample.at_s // 3600)].append(sample.value)
    return tuple(float(np.median(hours[hour])) if hour in hours else np.nan for hour in range(max(hours) + 1))


def _settled_age_s(who: str) -> float:
    return SLOWLY_SETTLED_S.get(who, SETTLED_AGE_S)


def _slope(samples: list[Sample]) -> tuple[float, float, int]:
    """Least squares with one slope for all processes of a role and a separate level for each; per hour."""
    found, began_s = defaultdict[tuple[int, int], list[Sample]](list), dict[int, float]()
    for sample in samples:
        if sample.at_s >= max(SETTLED_S, began_s.setdefault(sample.pid, sample.at_s) + _settled_age_s(sample.who)):
            found[sample.pid, int(sample.at_s // _BLOCK_S)].append(sample)
    blocks = {key: block for key, block in found.items() if len(block) >= _FEWEST_SAMPLES}
    pids = np.array([pid for pid, _ in blocks])
    hours = np.array([np.median([s.at_s for s in block]) / 3600 for block in blocks.values()])
    values = np.array([np.median([s.value for s in block]) for block in blocks.values()])
    for pid in set(pids):
        hours[pids == pid] -= hours[pids == pid].mean()
        values[pids == pid] -= values[pids == pid].mean()
    free, spread = len(blocks) - len(set(pids)) - 1, float(hours @ hours)
    if free < 1 or spread == 0:
        return 0.0, float("inf"), 0
    slope = float(hours @ values) / spread
    left = values - slope * hours
    return slope, float(np.sqrt(left @ left / free / spread)), len(blocks)
