"""What a quick and healthy pool answers to a command, for benchmarks of what decides."""

from __future__ import annotations

from collections.abc import Callable

from pilot.core.commands import Command, FormGroup, Solve, StartWorker, StopWorker
from pilot.core.events import Event, ExitCause, GroupFormed, PlanReady, WorkerExited, WorkerReady
from pilot.core.problem import Plan, Problem


def completion(command: Command, best: Callable[[Problem], Plan], step: int = 0) -> Event | None:
    """The event that completes ``command``, None if none does; groups form at ``step``, ``best`` plans."""
    match command:
        case Solve():
            return PlanReady(command.plan_id, best(command.problem))
        case StartWorker():
            return WorkerReady(command.trainer, command.node)
        case StopWorker():
            return WorkerExited(command.trainer, command.node, ExitCause.STOPPED)
        case FormGroup():
            return GroupFormed(command.trainer, command.generation, step, step or None)
        case _:
            return None
