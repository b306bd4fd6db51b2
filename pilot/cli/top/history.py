"""What ``pilot top`` remembers from its answers: each trainer's curves, who had each node when, what happened."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import PoolStatus, TrainerStatus

POINTS_KEPT = 240

AWAY = ""
"""In a node's row: the node was not in the pool."""

Cell = str | None
"""In a node's row: the trainer that had the node, None if no trainer did, or :data:`AWAY`."""


@dataclass(slots=True)
class Curves:
    """A trainer's values over time, oldest first; at most :data:`POINTS_KEPT`."""

    rate: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_KEPT))
    loss: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS_KEPT))


@dataclass(frozen=True, slots=True)
class StatusChange:
    """Something that changed between two answers, at ``at_s`` on the pool's clock."""

    at_s: float
    text: str


class History:
    """Fed with each answer in turn. Pure: no requests and no clock.

    Parameters
    ----------
    column_s : the time that one column of a node's row stands for
    """

    def __init__(self, column_s: float) -> None:
        self.column_s = column_s
        self.curves: dict[str, Curves] = {}
        self.rows: dict[str, deque[Cell]] = {}
        self._last: PoolStatus | None = None
        self._column = -1

    def note(self, status: PoolStatus) -> list[StatusChange]:
        """Take the next answer; returns what is new in it."""
        new = changes(self._last, status)
        self._note_curves(status.trainers)
        self._note_nodes(status)
        self._last = status
        return new

    def _note_curves(self, trainers: list[TrainerStatus]) -> None:
        for trainer in trainers:
            curves = self.curves.setdefault(trainer.trainer, Curves())
            if trainer.phase is Phase.RUNNING:
                curves.rate.append(trainer.samples_per_s or 0.0)
            loss = trainer.metrics.get("loss")
            if loss is not None and (not curves.loss or curves.loss[-1] != loss):
                curves.loss.append(loss)

    def _note_nodes(self, status: PoolStatus) -> None:
        """Add one cell for each column of time that has begun; the newest cell shows who has the node now."""
        column = int(status.now_s / self.column_s)
        new = 1 if self._column < 0 else min(max(0, column - self._column), POINTS_KEPT)
        self._column = column
        users = {node.node: node.trainer for node in status.pool}
        for node in users:
            self.rows.setdefault(node, deque(maxlen=POINTS_KEPT))
        for node, row in list(self.rows.items()):
            row.extend([users.get(node, AWAY)] * new)
            if new == 0 and row:
                row[-1] = users.get(node, AWAY)
            if all(cell == AWAY for cell in row):
                del self.rows[node]


def changes(before: PoolStatus | None, after: PoolStatus) -> list[StatusChange]:
    """What a person would want to know about the difference; for a first answer, the last decisions."""
    if before is None:
        return [StatusChange(decision.at_s, decision.text) for decision in after.decisions]
    texts = [*_nodes(before, after)]
    known = {trainer.trainer: trainer for trainer in before.trainers}
    for trainer in after.trainers:
        texts += _trainer(known.get(trainer.trainer), trainer)
    texts += [remark for remark in after.remarks if remark not in before.remarks]
    if after.draining and not before.draining:
        texts.append("the pool drains")
    return [StatusChange(after.now_s, text) for text in texts]


def _nodes(before: PoolStatus, after: PoolStatus) -> list[str]:
    old, new = {n.node: n for n in before.pool}, {n.node: n for n in after.pool}
    texts = [f"{node} joined" for node in new if node not in old]
    texts += [f"{node} got notice" for node, n in new.items() if n.leaving and node in old and not old[node].leaving]
    return texts + [f"{node} left" if n.leaving else f"{node} was lost" for node, n in old.items() if node not in new]


def _trainer(before: TrainerStatus | None, after: TrainerStatus) -> list[str]:
    name = after.trainer
    if before is None:
        return [f"{name} submitted"]
    texts = []
    if len(before.nodes) != len(after.nodes):
        texts.append(f"{name}: {len(before.nodes)} → {len(after.nodes)} nodes")
    if before.phase is not after.phase:
        reason = after.reason.splitlines()[0] if after.reason and after.phase is Phase.FAILED else ""
        texts.append(f"{name} {after.phase}" + (f": {reason}" if reason else ""))
    return texts + [f"{name}: {remark}" for remark in after.remarks if remark not in before.remarks]
