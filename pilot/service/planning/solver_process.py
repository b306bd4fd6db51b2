"""Runs the planner in a process that can be killed. It stays warm: importing Pyomo costs as much as many solves."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from pilot import planners
from pilot.core.commands import Solve
from pilot.core.errors import PilotError, SolverError, UserError
from pilot.core.events import PlanFailed, PlanReady
from pilot.core.ids import PlanId
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.service.planning.child_process import ChildProcess
from pilot.service.settings import Settings

log = logging.getLogger(__name__)

SPARE_S = 3.0
"""A planner observes its own limit; a child that exceeds it by more than this is stuck and is killed."""

WARM_S = 60.0
"""Time limit for importing the planner."""

PATIENCE_S = 10.0
"""A problem waits this long for a starting child; then the dp planner answers instead."""

AGAIN_S = 5.0
"""If a child could not be started, the next attempt is made with the first problem after this time."""

SUPERSEDED_S = 1.0
"""A superseded solve may continue for this long: starting a new child would take about as long."""

_CANNOT_START = (PilotError, OSError, RuntimeError)
"""Raised if there is no process, thread, file or memory for it."""

Post = Callable[[PlanReady | PlanFailed], object]


class PlannerAnswer(msgspec.Struct, frozen=True):
    """The child's answer: ready (neither), a plan, or why there is none."""

    plan: Plan | None = None
    error: str = ""


class SolverProcess:
    """At most one solve runs; the newest problem waits, older ones are answered with ``PlanFailed``."""

    def __init__(
        self, settings: Settings, scratch: Path, post: Post, warn: Callable[[str], object] = log.warning
    ) -> None:
        self._settings = settings
        self._scratch = scratch
        self._post = post
        self._warn = warn
        self._child: ChildProcess | None = None
        self._starting: asyncio.Task[ChildProcess] | None = None
        self._not_before_s = 0.0
        self._waiting: Solve | None = None
        self._running: PlanId | None = None
        self._asked = asyncio.Event()
        self._superseded = asyncio.Event()

    def solve(self, command: Solve) -> None:
        """Begin; completes with ``PlanReady`` or ``PlanFailed``."""
        if self._waiting is not None:
            self._fail(self._waiting.plan_id, command.plan_id)
        if self._running is not None:
            self._fail(self._running, command.plan_id)
            self._running = None
            self._superseded.set()
        self._waiting = command
        self._asked.set()

    @property
    def pid(self) -> int | None:
        """The process id of the warm child."""
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Make plans until cancelled; then kill the child and remove its files.

        If a child cannot be started or dies, plans are less good, without other consequences.

        Raises
        ------
        UserError
            There is no such planner or solver here, as the first child reports.
        """
        try:
            try:
                self._child = await self._start()
            except _CANNOT_START as error:
                if isinstance(error, UserError):
                    raise
                self._not_started(error)
            while True:
                self._begin_child()
                await self._asked.wait()
                self._asked.clear()
                await self._warm()
                await self._answer_newest()
        finally:
            if (starting := self._starting) is not None:
                starting.cancel()
                await asyncio.wait({starting})
            await self._kill()
            with suppress(RuntimeError):  # no thread can be started: the next coordinator clears it
                await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _begin_child(self) -> None:
        """Start a child in the background, if there is none and the last one did not fail a moment ago."""
        loop = asyncio.get_running_loop()
        if self._child is None and self._starting is None and loop.time() >= self._not_before_s:
            self._starting = loop.create_task(self._start())
            self._starting.add_done_callback(self._started)

    async def _warm(self) -> None:
        """Wait for the child that is starting, but not for long."""
        self._begin_child()
        if self._starting is not None:
            await asyncio.wait({self._starting}, timeout=PATIENCE_S)

    def _started(self, starting: asyncio.Task[ChildProcess]) -> None:
        self._starting = None
        try:
            self._child = starting.result()
        except asyncio.CancelledError:
            pass
        except _CANNOT_START as error:
            self._not_started(error)

    def _not_started(self, error: Exception) -> None:
        self._not_before_s = asyncio.get_running_loop().time() + AGAIN_S
        self._warn(f"the solver process could not be started: {error}; using the dp planner meanwhile")

    def _fail(self, plan_id: PlanId, by: PlanId) -> None:
        self._post(PlanFailed(plan_id, f"superseded by plan {by}"))

    async def _answer_newest(self) -> None:
        command, self._waiting = self._waiting, None
        if command is None:
            return
        self._running = command.plan_id
        self._superseded.clear()
        child = self._child
        plan = await (self._plan(child, command.problem) if child is not None else self._fallback(command.problem))
        if self._running == command.plan_id:
            self._running = None
            self._post(PlanReady(command.plan_id, plan) if plan else PlanFailed(command.plan_id, "no planner answered"))

    async def _plan(self, child: ChildProcess, problem: Problem) -> Plan | None:
        """The planner's plan; if it fails or is killed, the dp planner's, which takes milliseconds."""
        try:
            return await self._ask(child, problem)
        except (SolverError, OSError, EOFError) as error:
            if self._superseded.is_set():
                log.info("%s", error)
                await self._kill()
                return None
            log.warning("the planner %s gave no plan: %s; using dp instead", self._settings.planner, error)
            if not isinstance(error, SolverError) or error.transient:
                await self._kill()
            return await self._fallback(problem)

    async def _ask(self, child: ChildProcess, problem: Problem) -> Plan:
        answer = asyncio.ensure_future(child.ask(problem, PlannerAnswer))
        given_up = asyncio.ensure_future(self._superseded_long())
        limit_s = self._settings.solve_limit_s + SPARE_S
        try:
            done, _ = await asyncio.wait({answer, given_up}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            answer.cancel()
            given_up.cancel()
        if answer not in done:
            reason = "superseded" if done else f"no answer within {limit_s:g} s"
            raise SolverError(f"the solver process was killed: {reason}", transient=True)
        if (plan := (await answer).plan) is None:
            raise SolverError((await answer).error)
        if plan.status is not PlanStatus.KEPT and not problem.permits(plan):
            given = dict(plan.by_type) or plan.as_dict()
            raise SolverError(f"its plan is not feasible: {given}, ending {dict(plan.ending)}")
        return plan

    async def _superseded_long(self) -> None:
        await self._superseded.wait()
        await asyncio.sleep(SUPERSEDED_S)

    async def _fallback(self, problem: Problem) -> Plan | None:
        try:
            plan = planners.make("dp", limit_s=self._settings.solve_limit_s)
            try:
                return await asyncio.to_thread(plan, problem)
            except RuntimeError:  # no thread can be started: it takes milliseconds
                return plan(problem)
        except (PilotError, ArithmeticError, MemoryError) as error:
            log.error("dp gave no plan either: %s", error)
            return None

    async def _start(self) -> ChildProcess:
        await asyncio.to_thread(self._clear_scratch)
        options = (self._settings.planner, self._settings.solver, str(self._settings.solve_limit_s))
        child = await ChildProcess.start("pilot.service.planning.solver_child", *options, scratch=self._scratch)
        try:
            async with asyncio.timeout(WARM_S):
                answer = await child.answer(PlannerAnswer)
        except (TimeoutError, EOFError) as error:
            await child.kill()
            raise SolverError(f"the solver process did not start: {error!r}; see the coordinator's log") from None
        except BaseException:
            await child.kill()
            raise
        if answer.error:
            await child.kill()
            raise UserError(answer.error)
        return child

    def _clear_scratch(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700, parents=True)

    async def _kill(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.kill()
