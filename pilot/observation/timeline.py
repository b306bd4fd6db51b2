"""Who was on which node when: made from a journal by running its events through a fresh core."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from pilot.core.coordinator import Coordinator
from pilot.core.events import PoolChanged
from pilot.core.ids import NodeId, TrainerId
from pilot.io.journal import Decision


class Use(StrEnum):
    """What a node is used for."""

    IDLE = "idle"
    WARMING = "warming"
    TRAINING = "training"


class Fate(StrEnum):
    """What befell a node."""

    JOINED = "joined"
    NOTICE = "notice"
    GONE = "gone after notice"
    RELEASED = "gone because we let it go"
    LOST = "lost without notice"


@dataclass(frozen=True, slots=True)
class Span:
    """``node`` was used for ``trainer`` (None: for nobody) over [start_s, end_s)."""

    node: NodeId
    start_s: float
    end_s: float
    use: Use
    trainer: TrainerId | None


@dataclass(frozen=True, slots=True)
class Mark:
    """Something befell ``node`` at ``at_s``."""

    node: NodeId
    at_s: float
    fate: Fate


@dataclass(frozen=True, slots=True)
class Timeline:
    """``nodes`` in the order of joining; ``spans`` without gaps; ``marks`` in time order."""

    nodes: tuple[NodeId, ...]
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]
    end_s: float


def timeline(decisions: Iterable[Decision], core: Coordinator) -> Timeline:
    """Run ``decisions`` through ``core`` (fresh, with the journal's configuration) and note who is where."""
    open_spans: dict[NodeId, tuple[float, Use, TrainerId | None]] = {}
    nodes: dict[NodeId, None] = {}
    spans: list[Span] = []
    marks: list[Mark] = []
    noticed: set[NodeId] = set()
    now_s = 0.0
    for decision in decisions:
        now_s = decision.now_s
        if isinstance(decision.event, PoolChanged):
            noticed.update(decision.event.leaving)
            marks += _marks(core, decision.event, now_s, noticed)
        core.handle(now_s, decision.event)
        current = {node: _use(core, node) for node in core.pool.nodes}
        nodes.update(dict.fromkeys(current))
        spans += _close(open_spans, current, now_s)
    spans += _close(open_spans, {}, now_s)
    return Timeline(tuple(nodes), tuple(spans), tuple(marks), now_s)


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
    """End the spans of nodes whose use is another one now, and begin theirs."""
    ended: list[Span] = []
    for node, (start_s, use, trainer) in list(open_spans.items()):
        if current.get(node) != (use, trainer):
            del open_spans[node]
            if now_s > start_s:
                ended.append(Span(node, start_s, now_s, use, trainer))
    for node, (use, trainer) in current.items():
        open_spans.setdefault(node, (now_s, use, trainer))
    return ended


def _marks(core: Coordinator, event: PoolChanged, now_s: float, noticed: set[NodeId]) -> list[Mark]:
    marks = [Mark(n, now_s, Fate.JOINED) for n in event.joined if n not in core.pool]
    marks += [Mark(n, now_s, Fate.NOTICE) for n in event.leaving if n in core.pool and n not in core.pool.leaving]
    return marks + [Mark(n, now_s, _end(core, n, noticed)) for n in event.lost if n in core.pool]


def _end(core: Coordinator, node: NodeId, noticed: set[NodeId]) -> Fate:
    if node in noticed:
        return Fate.GONE
    return Fate.RELEASED if core.draining or node in core.pool.leaving else Fate.LOST
