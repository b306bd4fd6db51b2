"""The answers of a fast and healthy pool to commands, for benchmarks of the core."""

from __future__ import annotations

from collections.abc import Callable

from pilot.core.commands import Command, FormGroup, Solve, StartWorker, StopWorker
from pilot.core.events import Event, ExitCause, GroupFormed, PlanReady, WorkerExited, WorkerReady
from pilot.core.plan.problem import Plan, Problem


def completion(command: Command, best: Callable[[Problem], Plan], step: int = 0) -> Event | None:
    """The event that completes ``command``; None if none does. Groups form at ``step``; ``best`` plans."""
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
