"""How a step's samples are divided among ranks that are not equally fast, so that they finish together.

With each step every rank sends how long it computed for the step before, without waiting. A rank's *weight* is its
number of samples per second, relative to the others; samples are divided anew by the weights of the last steps, so
shares b follow times T by b ← b · mean(T) / T. All ranks compute the same, by integers and by operations that are
rounded alike on all processors.

Noise moves no samples: shares by the times of one window must shorten the slowest rank's time in the next window. A
change that made no step faster is undone, and the next one has to wait (some GPUs take as long for fewer samples).

A rank that stays when the group changes keeps its weight; a newcomer begins with the mean of the others. Weights are
not saved: a trainer that resumes from a checkpoint begins with equal shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import BALANCED, EQUAL, Bounds
from pilot.train.data.training_loader import Batches
from pilot.train.state.state_transfer import NOTHING, Holding

WINDOW = 3
"""Steps whose median times count; two windows are compared."""
LEAST_GAIN, REFINED_GAIN = 0.04, 0.015
"""The least part of a step's time for which shares change; the second one directly after a change."""
ROOM = 0.25
"""Without micro-batches a rank gets at most this part more than an equal share, for which its memory must suffice."""
MOST_TIMED = 1 << 13
"""Ranks of a group whose shares follow times; larger groups divide equally."""
_ONE = 1 << 20

Weights = NDArray[np.int64]
Times = NDArray[np.float64]


def divided(samples: int, weights: Weights, most: int) -> NDArray[np.int64]:
    """Return each rank's number of ``samples``, by ``weights`` and largest remainder: at least two if possible (batch
    norm needs them), and at most ``most`` (0: no limit).
    """
    quotas, free, rest = np.zeros(len(weights), np.int64), np.ones(len(weights), bool), samples
    while most and (over := free & (weights * rest > most * int(weights[free].sum()))).any():
        quotas[over], free = most, free & ~over
        rest -= most * int(over.sum())
    if rest:
        each, left = np.divmod(weights[free] * rest, int(weights[free].sum()))
        each[np.argsort(-left, kind="stable")[: rest - int(each.sum())]] += 1  # of equal remainders the lower rank's
        quotas[free] = each
    while quotas.min() < min(2, samples // len(weights)):
        quotas[[quotas.argmax(), quotas.argmin()]] += [-1, 1]
    return quotas


class Shares:
    """The shares of a group's ranks, the same on all of them. ``made``: returns the session's batches; ``limit_loss``:
    the part of the step's time that is lost because a share may not grow further.
    """

    def __init__(self) -> None:
        self.made: Callable[[], Batches] | None = None
        self.group_begins(-1, 0, [Holding(NOTHING, 0, 0)])

    @property
    def equal(self) -> bool:
        """Whether shares do not follow times, because batches are per node, or the script wants that."""
        return min(one.freedom for one in self._table) == 0

    def hello(self) -> tuple[int, int, int, int]:
        """Return what this rank brings to a new group, the last part of its :class:`Holding`: its weight in the former
        group, whose mean was 2^20 (0: there was none); whether shares are equal (0), have a limit (1) or none (2); how
        many batches it loads ahead; and the samples of a micro-batch (0: it has none).
        """
        if self.made is None:
            return 0, 0, 0, 0
        batches, mean = self.made(), int(self._weights.sum()) / len(self._weights)
        batching = batches.batching
        weight = round(int(self._weights[self._rank]) / mean * _ONE) if self._rank >= 0 else 0
        freedom = 1 if batching.sharing == BALANCED and not batching.micro else 2
        if batching.total is None or batching.sharing == EQUAL or (batching.in_step and batching.micro):
            freedom = 0  # in step, processes may sum only micro-batches that are equally large
        return weight, freedom, batches.look_ahead, batching.micro or 0

    def group_begins(self, rank: int, step: int, table: Sequence[Holding]) -> None:
        """Begin a group of ranks with these holdings, at step number ``step``."""
        self._rank, self._table = rank, table
        known = [one.weight for one in table if one.weight] or [_ONE]
        self._weights = np.array([one.weight or sum(known) // len(known) for one in table], np.int64)
        self._before = self._now = self._of(self._weights)
        self._was: tuple[Weights, float] | None = None
        self._patience = self._rest = 0
        self.limit_loss = 0.0
        self._measure_from(step)

    def _measure_from(self, step: int) -> None:
        """Begin to measure after ``step``, whose own time may include a compiler's."""
        self._since, self._full, self._times = step, -1, list[Times]()

    def bounds(self, step: int, rehearsal: Rehearsal | None = None) -> Bounds:
        """Return the bounds of the ranks' shares in step ``step``, whose ``rehearsal`` is given."""
        bounds = self._now if step >= self._since else self._before
        if not bounds or rehearsal is None:
            return bounds
        return self._of(self._weights[[not rehearsal.rehearses(rank) for rank in range(len(self._weights))]])

    def stepped(self, step: int, samples: int, times: Times) -> None:
        """Note that step ``step`` took ``samples``; ``times``: how long each rank computed for the step before."""
        before, self._full = self._full, step if samples == self._samples else -1
        if before != step - 1 or before <= self._since or not (self._divides and times.all()):
            return
        self._times.append(times)
        if len(self._times) == 2 * WINDOW:
            older, newer = (np.median(self._times[i : i + WINDOW], axis=0) for i in (0, WINDOW))
            self._times = self._times[WINDOW:]
            self._compare(step, older, newer)

    def _compare(self, step: int, older: Times, newer: Times) -> None:
        """Change the shares after ``step`` if shares by the ``older`` times would have been better for the newer."""
        shares, both, worst_s = self._shares(self._weights), (older + newer) / 2, float(newer.max())
        (weights, worst_before_s), self._was = self._was or (self._weights, math.inf), None
        if float(both.max()) >= worst_before_s:
            self._patience = self._rest = min(64, max(1, 2 * self._patience))
            self._change(step, weights)
            return
        self._patience *= worst_before_s == math.inf
        self._rest = max(0, self._rest - 1)

        def slowest_s(measured: Times, most: int) -> float:
            return float((divided(self._samples, _weights_of(shares / measured), most) * newer / shares).max())

        most = self._most(len(shares))
        self.limit_loss = max(0.0, 1 - slowest_s(both, 0) / slowest_s(both, most)) if most else 0.0
        enough_s = worst_s * (1 - (LEAST_GAIN if worst_before_s == math.inf else REFINED_GAIN))
        if not self._rest and slowest_s(older, most) < enough_s:
            self._was = self._weights, worst_s
            self._change(step, _weights_of(shares / both))

    def _change(self, step: int, weights: Weights) -> None:
        """Divide by ``weights`` from the first step on that no rank can have begun to load after ``step``."""
        ahead, micro = max(one.look_ahead for one in self._table), [one.micro for one in self._table]
        batches = -(-int(self._shares(self._weights).min()) // max(micro)) if all(micro) else 1
        begin = step + 1 + (-(-ahead // batches) + 1 if ahead else 0)  # an epoch's last step may have a single batch
        self._weights, self._before, self._now = weights, self._now, self._of(weights)
        self._measure_from(begin)

    def _shares(self, weights: Weights) -> NDArray[np.int64]:
        return divided(self._samples, weights, self._most(len(weights)))

    def _of(self, weights: Weights) -> Bounds:
        if not self._divides or (weights == weights[0]).all():
            return ()
        return (0, *np.cumsum(self._shares(weights)).tolist())

    def _most(self, ranks: int) -> int:
        has_limit, equal = any(one.freedom == 1 for one in self._table), self._samples / ranks
        return max(math.ceil(equal), int(equal * (1 + ROOM))) if has_limit else 0

    @property
    def _samples(self) -> int:
        return (self.made().batching.total if self.made is not None else None) or 0

    @property
    def _divides(self) -> bool:
        return not self.equal and 1 < len(self._table) <= min(self._samples, MOST_TIMED)


def _weights_of(rates: Times) -> Weights:
    """Return ``rates`` as integers of up to 2^20."""
    weights: Weights = np.maximum(1, np.rint(rates / rates.max() * _ONE)).astype(np.int64)
    return weights
