"""The coordinator's log about trainers: from the plan that gives them nodes to their steps."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pilot.core.commands import Command, StartWorker
from pilot.core.events import (
    Event,
    ExitCause,
    GroupBroken,
    GroupFormed,
    GroupPaused,
    GroupStalled,
    PlanReady,
    ScriptChecked,
    WorkerExited,
    WorkerReady,
    WorkerSlow,
)
from pilot.core.evidence import headline
from pilot.core.ids import NodeId, TrainerId
from pilot.observation.monitor import Monitor
from pilot.observation.words import node_count, node_names

log = logging.getLogger(__name__)


def tell(event: Event, commands: Sequence[Command], monitor: Monitor) -> None:
    """Log what ``event`` and ``commands`` mean; ``monitor`` has processed them already."""
    for line in (*_of_event(event, monitor), *_of_commands(commands)):
        log.info("%s", line)


def _of_event(event: Event, monitor: Monitor) -> Iterator[str]:
    match event:
        case PlanReady():
            yield from (text for at_s, text in monitor.decisions if at_s == monitor.now_s)
        case WorkerReady():
            yield f"{event.trainer}: ready on {event.node}"
        case WorkerSlow():
            yield f"{event.trainer}: still starting on {event.node}; the others do not wait for it"
        case WorkerExited() if event.cause not in (ExitCause.STOPPED, ExitCause.UNREAD):
            yield f"{event.trainer}: {event.cause} on {event.node}: {headline(event.detail)}"
        case GroupFormed():
            record = monitor.trainers.get(event.trainer)
            nodes = node_count(record.nodes) if record is not None else "no node"
            whence = "" if event.resumed is None else " from a checkpoint" if event.resumed else " from scratch"
            yield f"{event.trainer}: training on {nodes}{whence} at step {event.step}"
        case GroupBroken() | GroupStalled():
            what = "its group broke" if isinstance(event, GroupBroken) else "its group stalls"
            yield f"{event.trainer}: {what}: {headline(event.reason)}"
        case ScriptChecked():
            yield f"{event.trainer}: its script, checked on {event.node}: {event.result}: {event.line}"
        case GroupPaused():
            yield f"{event.trainer}: paused at step {event.step}"
        case _:
            pass


def _of_commands(commands: Sequence[Command]) -> Iterator[str]:
    starting: dict[TrainerId, list[NodeId]] = {}
    for command in commands:
        if isinstance(command, StartWorker):
            starting.setdefault(command.trainer, []).append(command.node)
    yield from (f"{trainer}: its script starts on {node_names(nodes)}" for trainer, nodes in starting.items())
