"""Which trainer was on which node when, found by running a journal's events through a fresh core."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pilot.core.coordinator import Coordinator
from pilot.core.events import PoolChanged, TrainerRemoved
from pilot.core.ids import NodeId, TrainerId
from pilot.rundir.entries import Decision
from pilot.rundir.follower import Applied, Follower


class Use(StrEnum):
    """The use of a node."""

    IDLE = "idle"
    WARMING = "warming"
    TRAINING = "training"


class Fate(StrEnum):
    """An event of a node's life."""

    JOINED = "joined"
    NOTICE = "notice"
    GONE = "left after notice"
    RELEASED = "released"
    LOST = "lost without notice"


@dataclass(frozen=True, slots=True)
class Span:
    """``node`` was used for ``trainer`` (None: it was idle) over [start_s, end_s). ``removed``: the trainer was removed
    later; another one may have its name since."""

    node: NodeId
    start_s: float
    end_s: float
    use: Use
    trainer: TrainerId | None
    removed: bool = False


@dataclass(frozen=True, slots=True)
class NodeMark:
    """``node`` had an event at ``at_s``."""

    node: NodeId
    at_s: float
    fate: Fate


@dataclass(frozen=True, slots=True)
class Timeline:
    """``nodes`` in the order in which they joined; ``spans`` without gaps; ``marks`` in time order. ``types`` are those
    of the nodes, where they are known."""

    nodes: tuple[NodeId, ...]
    spans: tuple[Span, ...]
    marks: tuple[NodeMark, ...]
    end_s: float
    types: Mapping[NodeId, str] = field(default_factory=dict)

    @property
    def labels(self) -> dict[NodeId, str]:
        """The nodes' names; with their types, if these differ."""
        differ = len({self.types.get(node, "") for node in self.nodes}) > 1
        return {node: f"{node} ({self.types.get(node) or '-'})" if differ else node for node in self.nodes}


class TimelineMaker:
    """Runs a journal's decisions through a fresh ``core`` with the journal's configuration, noting each node's use."""

    def __init__(self, core: Coordinator) -> None:
        self._core = core
        self._follower = Follower(core)
        self._open: dict[NodeId, tuple[float, Use, TrainerId | None]] = {}
        self._nodes: dict[NodeId, None] = {}
        self._spans: list[tuple[Span, int]] = []  # with how many trainers of that name had been removed
        self._removals: Counter[TrainerId | None] = Counter()
        self._marks: list[NodeMark] = []
        self._noticed: set[NodeId] = set()
        self._types: dict[NodeId, str] = {}
        self._now_s = 0.0

    def note(self, decision: Decision) -> list[Applied]:
        """Take the next decision, in the order of the journal; returns what the core took."""
        self._now_s = now_s = decision.now_s
        if isinstance(decision.event, PoolChanged):
            self._noticed.update(decision.event.noticed)
            self._types.update((node, of.name) for node, of in decision.event.types)
            self._marks += _marks(self._core, decision.event, now_s, self._noticed)
        applied = self._follower.follow(decision)
        current = {node: _use(self._core, node) for node in self._core.pool.nodes}
        self._nodes.update(dict.fromkeys(current))
        self._ended(_close(self._open, current, now_s))
        if isinstance(decision.event, TrainerRemoved):
            self._removals[decision.event.trainer] += 1
        return applied

    def made(self) -> Timeline:
        """The timeline up to the last decision."""
        self._ended(_close(dict(self._open), {}, self._now_s))
        spans = (replace(span, removed=before < self._removals[span.trainer]) for span, before in self._spans)
        return Timeline(tuple(self._nodes), tuple(spans), tuple(self._marks), self._now_s, self._types)

    def _ended(self, spans: Iterable[Span]) -> None:
        self._spans += [(span, self._removals[span.trainer]) for span in spans]


def _use(core: Coordinator, node: NodeId) -> tuple[Use, TrainerId | None]:
    trainer_id = core.pool.occupant.get(node)
    if trainer_id is None:
        return Use.IDLE, None
    group = core.trainers[trainer_id].group
    trains = group is not None and node in group.members
    return (Use.TRAINING if trains else Use.WARMING), trainer_id


def _close(
    open_spans: dict[NodeId, tuple[float, Use, TrainerId | None]],
    current: dict[NodeId, tuple[Use, TrainerId | None]],
    now_s: float,
) -> list[Span]:
    """End the spans of nodes whose use has changed, and start new ones."""
    ended: list[Span] = []
    for node, (start_s, use, trainer) in list(open_spans.items()):
        if current.get(node) != (use, trainer):
            del open_spans[node]
            if now_s > start_s:
                ended.append(Span(node, start_s, now_s, use, trainer))
    for node, (use, trainer) in current.items():
        open_spans.setdefault(node, (now_s, use, trainer))
    return ended


def _marks(core: Coordinator, event: PoolChanged, now_s: float, noticed: set[NodeId]) -> list[NodeMark]:
    marks = [NodeMark(n, now_s, Fate.JOINED) for n in event.joined if n not in core.pool]
    marks += [NodeMark(n, now_s, Fate.NOTICE) for n in event.noticed if n in core.pool and n not in core.pool.leaving]
    return marks + [NodeMark(n, now_s, _end(core, n, noticed)) for n in event.lost if n in core.pool]


def _end(core: Coordinator, node: NodeId, noticed: set[NodeId]) -> Fate:
    if node in noticed:
        return Fate.GONE
    return Fate.RELEASED if core.draining or node in core.pool.leaving else Fate.LOST
