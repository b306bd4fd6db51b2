"""A group of threads in one process: gathers like a real one, and never breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import nn

from pilot.train.node.membership import Membership
from pilot.train.ranks.group import RankGroup
from pilot.train.state.stepper import LearningRate
from pilot.train.state.training import Training

DEADLINE_S = 30.0
_Result = TypeVar("_Result")


class Twin(RankGroup):
    """Rank ``rank`` of a group."""

    def __init__(self, rank: int, ranks: list[Twin], barrier: threading.Barrier) -> None:
        self.training = training()
        super().__init__(self.training, lambda _: None)
        self._member = Membership(1, rank, barrier.parties)
        self._ranks, self._barrier = ranks, barrier
        self._row: list[int] = []

    def enter(self) -> Membership:
        return self._member

    def gather(self, row: list[int]) -> list[list[int]]:
        self._row = row
        self._barrier.wait()
        rows = [other._row for other in self._ranks]
        self._barrier.wait()
        return rows

    def hand_over(self, giver: int, takers: Sequence[int]) -> None:
        self._barrier.wait()
        if self._member.rank in takers:
            self.training.restore(self._ranks[giver].training.capture())
        self._barrier.wait()


def training() -> Training:
    model = nn.Linear(2, 1)
    return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), None, "step", LearningRate("none"))


def together(count: int, script: Callable[[Twin], _Result]) -> list[_Result]:
    """Run ``script`` on each of ``count`` ranks at once; returns their results, by rank."""
    ranks: list[Twin] = []
    barrier = threading.Barrier(count, timeout=DEADLINE_S)
    ranks += [Twin(rank, ranks, barrier) for rank in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(script, ranks))
