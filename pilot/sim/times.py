"""How long each trainer waited and trained, and how many were done when another replay had done N (Huawei §5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Literal

from pilot.core.ids import TrainerId
from pilot.sim.accounting import Account
from pilot.traces.workload import Ending


@dataclass(frozen=True, slots=True)
class TrainerTimes:
    """One trainer that has ended; all in seconds."""

    trainer: TrainerId  #: its id
    submit_s: float  #: on the trace's clock
    ended_s: float  #: on the trace's clock
    waiting_s: float  #: without nodes, or with fewer than its minimum
    training_s: float  #: the rest
    ending: Ending  #: how it ended

    @property
    def total_s(self) -> float:
        """From submission to end."""
        return self.ended_s - self.submit_s


def times_of(accounts: Mapping[TrainerId, Account]) -> list[TrainerTimes]:
    """The times of all trainers that have ended, in the order in which they were admitted."""
    return [_times(name, account, account.ended_s) for name, account in accounts.items() if account.ended_s is not None]


def _times(name: TrainerId, account: Account, ended_s: float) -> TrainerTimes:
    submit_s, least = account.submission.submit_s, account.submission.spec.min_nodes
    spans = pairwise([*account.changes, (ended_s, 0)])
    training_s = sum(until_s - since_s for (since_s, nodes), (until_s, _) in spans if nodes >= least)
    waiting_s = max(0.0, ended_s - submit_s - training_s)
    return TrainerTimes(name, submit_s, ended_s, waiting_s, training_s, account.submission.ending)


def mean(times: Sequence[TrainerTimes], what: Literal["waiting_s", "training_s", "total_s"]) -> float | None:
    """The mean of one of the times; None if no trainer has ended."""
    return fmean(getattr(one, what) for one in times) if times else None


def done_when(other: Sequence[TrainerTimes], count: int, these: Sequence[TrainerTimes]) -> int | None:
    """How many of ``these`` were completed when ``other`` had completed ``count``; None: it never did."""
    ends = sorted(one.ended_s for one in other if one.ending is Ending.FINISHES)
    if len(ends) < count:
        return None
    return sum(one.ended_s <= ends[count - 1] for one in these if one.ending is Ending.FINISHES)
