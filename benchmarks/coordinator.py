"""From an event to a plan to commands: the cost of a pool change for the coordinator.

A pool of N nodes and T trainers is brought to rest; then nodes leave and join in turn. Measured each time are the
core's time for the event, the solver process's for the plan (its pipe included), and the core's for the plan. The
planner is the default one, ``milp`` on CBC; the shares of building the model in Pyomo, writing the LP file and CBC are
measured on the same problems.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from pyomo.repn.plugins.lp_writer import LPWriter

from benchmarks.completion import completion
from pilot import planners
from pilot.core.commands import Command, Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.events import (
    Event,
    PlanFailed,
    PlanReady,
    PoolChanged,
    TrainerSubmitted,
)
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import Problem
from pilot.core.trainer.spec import TrainerSpec
from pilot.planners import model
from pilot.service.planning.solver_process import SolverProcess
from pilot.service.settings import Settings

SIZES = [(nodes, trainers) for trainers in (5, 50) for nodes in (10, 100, 1000)]
ROUNDS = 20
POINTS = (1, 2, 4, 8, 16, 32, 64)


def main() -> None:
    """Print and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coordinator", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    results = [asyncio.run(measure(nodes, trainers, arguments.rounds)) for nodes, trainers in SIZES]
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


async def measure(nodes: int, trainers: int, rounds: int) -> dict[str, Any]:
    """One size; times in milliseconds."""
    posted: asyncio.Queue[PlanReady | PlanFailed] = asyncio.Queue()
    with tempfile.TemporaryDirectory() as folder:
        solver = SolverProcess(Settings(), Path(folder) / "solver", posted.put_nowait)
        running = asyncio.create_task(solver.run())
        pool = Pool(nodes, trainers)
        while solver.pid is None:
            await asyncio.sleep(0.01)
        times = [await change(pool, event, solver, posted) for event in itertools.islice(pool.changes(), rounds)]
        running.cancel()
        await asyncio.wait([running])
    result = {"nodes": nodes, "trainers": trainers, "rounds": rounds}
    result |= {name: spread([row[name] for row in times]) for name in times[0]}
    result |= shares(pool.problems)
    print(json.dumps(result), flush=True)
    return result


async def change(
    pool: Pool, event: Event, solver: SolverProcess, posted: asyncio.Queue[PlanReady | PlanFailed]
) -> dict[str, float]:
    """One event through the core, the solver process, and the core again; then everything that follows from it."""
    started_s = time.perf_counter()
    commands = pool.tell(event)
    told_s = time.perf_counter()
    solver.solve(next(c for c in commands if isinstance(c, Solve)))
    plan = await posted.get()
    planned_s = time.perf_counter()
    more = pool.tell(plan)
    ended_s = time.perf_counter()
    pool.rest([*commands, *more])
    return {
        "event_ms": 1000 * (told_s - started_s),
        "plan_ms": 1000 * (planned_s - told_s),
        "commands_ms": 1000 * (ended_s - planned_s),
        "all_ms": 1000 * (ended_s - started_s),
    }


class Pool:
    """A core with nodes and trainers, and agents that carry out every command at once."""

    def __init__(self, nodes: int, trainers: int) -> None:
        self.core = Coordinator(CoordinatorConfig(max_parallel_trainers=trainers))
        self.problems: list[Problem] = []
        self._now_s = 0.0
        self._best = planners.make("dp")
        joined = tuple(NodeId(f"n{number}") for number in range(nodes))
        self.rest(self.tell(PoolChanged(joined=joined)))
        for number in range(trainers):
            curve = Curve.of((n, n**0.9 * (1 + 0.03 * number)) for n in POINTS)
            self.rest(self.tell(TrainerSubmitted(TrainerSpec(TrainerId(f"t{number}"), curve=curve, fixed_curve=True))))

    def changes(self) -> Iterator[Event]:
        """A node leaves, one joins, another one leaves, …"""
        for number in itertools.count():
            node = self.core.pool.nodes[number * 7 % len(self.core.pool)]
            yield PoolChanged(lost=(node,), cause="a benchmark")
            yield PoolChanged(joined=(node,))

    def tell(self, event: Event) -> list[Command]:
        """The core's commands."""
        self._now_s += 1.0
        commands = self.core.handle(self._now_s, event)
        self.problems += [command.problem for command in commands if isinstance(command, Solve)]
        return commands

    def rest(self, commands: list[Command]) -> None:
        """Complete the commands, and those that follow from them, until there are none."""
        waiting = list(commands)
        while waiting:
            command = waiting.pop(0)
            if isinstance(command, Solve) and command.plan_id != self.core.plan_id:
                continue
            event = completion(command, self._best)
            if event is not None:
                waiting += self.tell(event)


def shares(problems: list[Problem]) -> dict[str, Any]:
    """Breakdown of the planner's time on the last problems: building in Pyomo, writing the LP, CBC."""
    plan = planners.make()
    rows = [_times(problem, plan(problem).solve_s) for problem in problems[-5:]]
    times = {name: median(row[name] for row in rows) for name in rows[0]}
    total = sum(times.values())
    return {f"{name}_ms": 1000 * t for name, t in times.items()} | {f"{n}_share": t / total for n, t in times.items()}


def _times(problem: Problem, solve_s: float) -> dict[str, float]:
    started_s = time.perf_counter()
    built = model.build(problem)
    built_s = time.perf_counter()
    LPWriter().write(built, io.StringIO())
    return {"build": built_s - started_s, "write": time.perf_counter() - built_s, "cbc": solve_s}


def spread(values: list[float]) -> dict[str, float]:
    """Median and worst."""
    return {"median": median(values), "max": max(values)}


if __name__ == "__main__":
    main()
