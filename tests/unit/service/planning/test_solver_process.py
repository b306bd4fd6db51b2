"""Plans come from a killable process, and always come."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pilot.core.commands import Solve
from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.events import PlanFailed, PlanReady
from pilot.core.ids import PlanId, TrainerId
from pilot.core.plan.problem import Candidate, Problem
from pilot.service.planning import solver_process
from pilot.service.planning.solver_process import SolverProcess
from pilot.service.settings import Settings

T = TrainerId("t")
PROBLEM = Problem(4, 120.0, (Candidate(T, 0, 1, 3, Curve.of([(1, 1.0), (4, 3.0)]), 20.0, 10.0),))

Completion = PlanReady | PlanFailed


def solve(number: int) -> Solve:
    return Solve(PlanId(number), PROBLEM, "a test asks")


async def warm(solver: SolverProcess) -> int:
    """Wait for the child; returns its process id."""
    async with asyncio.timeout(60):
        while solver.pid is None:
            await asyncio.sleep(0.01)
    return solver.pid


def run(
    tmp_path: Path, play: Callable[[SolverProcess, asyncio.Queue[Completion]], Coroutine[Any, Any, None]], **more: Any
) -> None:
    """Run a solver process; afterwards its child and its files are gone."""

    async def main() -> None:
        posted: asyncio.Queue[Completion] = asyncio.Queue()
        solver = SolverProcess(Settings(**{"planner": "dp", **more}), tmp_path / "scratch", posted.put_nowait)
        running = asyncio.create_task(solver.run())
        pid = await warm(solver)
        async with asyncio.timeout(60):
            await play(solver, posted)
        last = solver.pid
        running.cancel()
        await asyncio.wait([running])
        assert not psutil.pid_exists(pid)
        assert last is None or not psutil.pid_exists(last)

    asyncio.run(main())
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("planner", "nodes", "optimised"),
    [
        ("dp", 3, ""),
        ("milp", 3, ""),
        ("milp", 3, "2"),  # Pyomo needs the docstrings that this drops
        ("greedy", 3, ""),
        ("flotilla", 3, ""),
        ("rolling-horizon", 2, ""),
    ],
)
def test_a_plan_comes_back_under_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planner: str, nodes: int, optimised: str
) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", optimised)

    async def play(solver: SolverProcess, posted: asyncio.Queue[Completion]) -> None:
        solver.solve(solve(7))
        match await posted.get():
            case PlanReady(7, plan):
                assert (plan.as_dict(), plan.planner) == ({T: nodes}, planner)
            case other:
                pytest.fail(f"unexpected: {other}")

    run(tmp_path, play, planner=planner)


def test_a_stuck_child_is_killed_and_dp_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_process, "SPARE_S", 0.1)

    async def play(solver: SolverProcess, posted: asyncio.Queue[Completion]) -> None:
        stuck = await warm(solver)
        os.kill(stuck, signal.SIGSTOP)
        solver.solve(solve(1))
        first = await posted.get()
        assert isinstance(first, PlanReady)
        assert first.plan.as_dict() == {T: 3}
        solver.solve(solve(2))
        assert isinstance(await posted.get(), PlanReady)
        assert await warm(solver) != stuck

    run(tmp_path, play, solve_limit_s=0.2)


def test_every_question_is_answered_once_and_only_the_newest_with_a_plan(tmp_path: Path) -> None:
    async def play(solver: SolverProcess, posted: asyncio.Queue[Completion]) -> None:
        os.kill(await warm(solver), signal.SIGSTOP)
        solver.solve(solve(1))
        await asyncio.sleep(0)
        for number in (2, 3):
            solver.solve(solve(number))
        answers = [await posted.get() for _ in range(3)]
        assert [(type(a), a.plan_id) for a in answers] == [(PlanFailed, 1), (PlanFailed, 2), (PlanReady, 3)]
        assert posted.empty()

    run(tmp_path, play)


def test_a_solver_that_is_not_there_is_the_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    solver = SolverProcess(Settings(planner="milp", solver="glpk"), tmp_path / "scratch", print)
    with pytest.raises(UserError, match="glpk"):
        asyncio.run(solver.run())


PARENT = """
import asyncio, sys
from pathlib import Path
from pilot.service.settings import Settings
from pilot.service.planning.solver_process import SolverProcess

async def main():
    solver = SolverProcess(Settings(planner="dp"), Path(sys.argv[1]), print)
    running = asyncio.create_task(solver.run())
    while solver.pid is None:
        await asyncio.sleep(0.01)
    print(solver.pid, flush=True)
    await running

asyncio.run(main())
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_it_does_not_outlive_a_killed_coordinator_even_when_it_is_stuck(tmp_path: Path, stopped: bool) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "scratch")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        if stopped:
            child.suspend()
        parent.kill()
    gone, _ = psutil.wait_procs([child], timeout=30)
    assert gone == [child]


def test_while_a_new_child_is_slow_to_start_dp_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solver_process, "PATIENCE_S", 0.05)

    async def play(solver: SolverProcess, posted: asyncio.Queue[Completion]) -> None:
        start, go = solver_process.ChildProcess.start, asyncio.Event()

        async def slow(*arguments: Any, **named: Any) -> Any:
            await go.wait()
            return await start(*arguments, **named)

        monkeypatch.setattr(solver_process.ChildProcess, "start", slow)
        first = await warm(solver)
        os.kill(first, signal.SIGKILL)
        for number in (1, 2):
            solver.solve(solve(number))
            assert isinstance(await posted.get(), PlanReady)
        assert solver.pid is None
        go.set()
        assert await warm(solver) != first

    run(tmp_path, play)


def test_a_child_that_cannot_be_started_is_reported_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver_process, "AGAIN_S", 0.0)
    warnings: list[str] = []

    async def play(solver: SolverProcess, posted: asyncio.Queue[Completion]) -> None:
        solver._warn = warnings.append

        async def refused(*_: Any, **__: Any) -> Any:
            raise BlockingIOError(11, "Resource temporarily unavailable")

        with monkeypatch.context() as patched:
            patched.setattr(solver_process.ChildProcess, "start", refused)
            os.kill(await warm(solver), signal.SIGKILL)
            for number in (1, 2):
                solver.solve(solve(number))
                assert isinstance(await posted.get(), PlanReady)
        assert any("Resource temporarily unavailable" in text for text in warnings)
        solver.solve(solve(3))
        assert isinstance(await posted.get(), PlanReady)
        await warm(solver)

    run(tmp_path, play)


@pytest.mark.parametrize(
    "command",
    [["pilot.service.planning.solver_child", "{}", "dp", "cbc", "1"], ["pilot.service.planning.sampler_child", "{}"]],
)
def test_a_child_whose_coordinator_dies_while_it_starts_prints_nothing(command: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(writing)
    answers, theirs = os.pipe()
    os.close(answers)
    child = [sys.executable, "-P", "-m", *(word.format(reading) for word in command)]
    done = subprocess.run(
        child,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
        pass_fds=(reading,),
        text=True,
        check=False,
    )
    os.close(reading)
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("planner", ["dp", "milp"])
def test_a_plan_for_several_types_comes_back_with_the_nodes_of_each(tmp_path: Path, planner: str) -> None:
    """The faster type first, then what is missing of the other."""
    one = replace(PROBLEM.candidates[0], held=(0, 0), speeds=(0.5, 1.0))
    problem = replace(PROBLEM, candidates=(one,), types=("a", "b"), types_nodes=(3, 1))

    async def play(solver: SolverProcess, posted: asyncio.Queue[Completion]) -> None:
        solver.solve(Solve(PlanId(1), problem, "a test asks"))
        ready = await posted.get()
        assert isinstance(ready, PlanReady) and ready.plan.by_type == ((T, (2, 1)),)

    run(tmp_path, play, planner=planner)
