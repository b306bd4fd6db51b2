"""Decides which rank sends its state to which when a generation starts; pure, and the same on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import IntEnum

NOTHING = -1

Progress = tuple[int, int, int, int, int, int]


class Standing(IntEnum):
    """What is known of a process's computations since it took over a state (:mod:`pilot.train.data.rehearsal`)."""

    NEW = 0
    """It has taken part in no step."""
    NOT_COMPARED = 1
    """It has, but was not compared with others."""
    COMPARED = 2
    """It was compared with one of this standing, or has begun the training."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A rank's state: after ``step``, last confirmed in ``generation`` (``NOTHING``: none yet), and of which run (see
    :mod:`pilot.train.state.identity`). After that step it may have stepped ``phase`` optimizers of the next one, or
    have ended epochs and held ``met`` meetings in this one; ``behind``: 1 if it was taken over from a rank that has
    done more since (:class:`~pilot.train.state.training.Training`), 0 otherwise; ``standing``: see :class:`Standing`;
    ``on_gpu``: whether the model is on a GPU. The others are in :meth:`Shares.hello
    <pilot.train.state.shares.Shares.hello>`.
    """

    generation: int
    step: int
    fingerprint: int
    epoch: int = 0
    met: int = 0
    phase: int = 0
    behind: int = 0
    standing: int = Standing.NEW
    on_gpu: int = False
    weight: int = 0
    freedom: int = 0
    look_ahead: int = 0
    micro: int = 0

    @property
    def progress(self) -> Progress:
        """The basis of comparison. One that is behind may have held meetings that count for itself alone."""
        return self.generation, self.step, self.phase, self.epoch, -self.behind, self.met

    def row(self) -> list[int]:
        """For the gather."""
        return [int(one) for one in astuple(self)]


@dataclass(frozen=True, slots=True)
class Spreading:
    """``root`` gives its state to ``takers``. ``fresh``: nobody has one, so ``root`` first loads or creates one."""

    root: int
    takers: tuple[int, ...]
    fresh: bool


def who_spreads(table: Sequence[Holding], per_node: int = 1) -> Spreading:
    """The most advanced rank (by generation, then by step, …, then the lowest rank) gives its state to all that differ.
    If a node's ``per_node`` ranks hold shards, nodes are compared, and the answer names the first rank of each. A node
    whose ranks hold different states counts as having none.
    """
    nodes = [table[first : first + per_node] for first in range(0, len(table), per_node)]
    held = [_of_node([holding.progress for holding in node]) for node in nodes]
    best = max(held)
    fresh = best[0] == NOTHING
    root = held.index(best)
    takers = (node * per_node for node, progress in enumerate(held) if node != root and (fresh or progress != best))
    return Spreading(root * per_node, tuple(takers), fresh)


def strangers(table: Sequence[Holding], spreading: Spreading) -> set[int]:
    """The ranks that train on the CPU while the others do on GPUs, or the reverse: their numbers would be rounded
    differently. If nobody has a state yet, the GPUs are what the trainer was meant for.
    """
    on_gpu = max(holding.on_gpu for holding in table) if spreading.fresh else table[spreading.root].on_gpu
    return {rank for rank, holding in enumerate(table) if holding.on_gpu != on_gpu}


def by_local_rank(spreading: Spreading, per_node: int) -> list[Spreading]:
    """The same for each local rank: local rank i gives to local rank i."""
    root, takers = spreading.root // per_node, dict.fromkeys(taker // per_node for taker in spreading.takers)
    return [
        Spreading(root * per_node + i, tuple(taker * per_node + i for taker in takers), spreading.fresh)
        for i in range(per_node)
    ]


def _of_node(progress: Sequence[Progress]) -> Progress:
    return progress[0] if len(set(progress)) == 1 else (NOTHING, 0, 0, 0, 0, 0)
