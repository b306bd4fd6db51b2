"""Answers what the CLI asks of the coordinator: one method per verb of :mod:`pilot.io.verbs`."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any, ParamSpec, TypeVar

import msgspec

from pilot.core.curve import Curve
from pilot.core.errors import PilotError, UserError
from pilot.core.events import DrainRequested, NodeCleared, TrainerCancelled, TrainerSubmitted
from pilot.core.explain import explain
from pilot.core.ids import NodeId, TrainerId, TrainerUid
from pilot.core.trainer import Phase, Trainer
from pilot.io import verbs, wire
from pilot.io.pool_status import PoolStatus, Told
from pilot.io.submission import Submission
from pilot.io.verbs import (
    A,
    Cancelled,
    Cleared,
    Draining,
    Explained,
    NodeList,
    Nothing,
    OneTrainer,
    Phases,
    PilotList,
    R,
    SomeNodes,
    SomeTrainers,
    Submitted,
    TrainerList,
    Verb,
)
from pilot.service import status_view
from pilot.service.launch_store import LaunchStore
from pilot.service.live_driver import LiveDriver
from pilot.service.roster import Roster
from pilot.service.server import Peer, Server
from pilot.service.status_view import About

log = logging.getLogger(__name__)

WAIT_S = 20.0
"""A ``wait`` is answered after so long at the latest; the CLI then asks again."""

LOOK_S = 0.5
"""So often whoever waits for the disk looks whether it is full."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[dict[str, Any]], Awaitable[Told]]


def _typed(verb: Verb[A, R], method: Callable[[A], Awaitable[R]]) -> tuple[str, Handler]:
    """``verb`` by its name; its arguments are judged before ``method`` gets them."""

    async def handle(arguments: dict[str, Any]) -> Told:
        return await method(msgspec.convert(arguments, verb.arguments))

    return verb.name, handle


class Api:
    """Answers requests; each in a task of its own, since some wait."""

    def __init__(
        self, server: Server, driver: LiveDriver, roster: Roster, launches: LaunchStore, about: Callable[[], About]
    ) -> None:
        self._server = server
        self._driver = driver
        self._roster = roster
        self._launches = launches
        self._about = about
        self._tasks: set[asyncio.Task[None]] = set()
        self._arriving: set[TrainerId] = set()
        self._disk, self._sums = ThreadPoolExecutor(1, "disk"), ThreadPoolExecutor(1, "sums")
        for thread in (self._disk, self._sums):
            thread.submit(int)  # it is there before the host's limit of threads is reached
        self._handlers: dict[str, Handler] = dict(
            [
                _typed(verbs.SUBMIT, self.submit),
                _typed(verbs.LIST, self.list_trainers),
                _typed(verbs.STATUS, self.status),
                _typed(verbs.PILOTS, self.pilots),
                _typed(verbs.NODES, self.nodes),
                _typed(verbs.CLEAR, self.clear),
                _typed(verbs.WAIT, self.wait),
                _typed(verbs.CANCEL, self.cancel),
                _typed(verbs.EXPLAIN, self.explain),
                _typed(verbs.DOWN, self.down),
            ]
        )

    def answer(self, link: Peer, request: wire.Request) -> None:
        """Answer a request of a user."""
        task = asyncio.get_running_loop().create_task(self._answer(link, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, link: Peer, request: wire.Request) -> None:
        self._server.send(link, await self.reply(request.verb, request.arguments))

    async def reply(self, verb: str, arguments: dict[str, Any]) -> wire.Reply:
        """The reply to ``verb``; a :class:`PilotError` becomes its error and exit status."""
        try:
            if verb not in self._handlers:
                raise UserError(f"unknown verb {verb!r}; there are: {', '.join(self._handlers)}")
            return wire.Reply(result=await self._handlers[verb](arguments))
        except msgspec.ValidationError as error:
            return wire.Reply(error=f"{verb}: {error}", exit_status=UserError.exit_status)
        except PilotError as error:
            return wire.Reply(error=str(error), exit_status=error.exit_status)
        except Exception:
            log.exception("a bug of ours, in answering %s", verb)
            return wire.Reply(error=f"{verb} failed in the coordinator; its log has the details", exit_status=1)

    # --- verbs ----------------------------------------------------------------------------------------------------

    async def submit(self, given: Submission) -> Submitted:
        """A new trainer. Answered when the journal has it."""
        self._refuse_when_draining()
        trainer = self._name(given.name)
        spec = given.spec(trainer, TrainerUid(secrets.token_hex(16)))
        # A user's function that fails is refused here: the core could not go on.
        self._driver.core.config.objective(spec, spec.curve or Curve.proportional())
        start = given.start.files if given.start is not None else ()
        self._arriving.add(trainer)
        try:
            await _in(self._disk, self._launches.add, spec, given.launch, start)
        finally:
            self._arriving.discard(trainer)
        self._refuse_when_draining()
        await self._decided(self._driver.post(TrainerSubmitted(spec)), f"trainer {trainer} is submitted")
        log.info("trainer %s was submitted: %s", trainer, given.launch.script)
        return Submitted(trainer=trainer, directory=str(self._launches.shown(spec)))

    async def list_trainers(self, _: Nothing) -> TrainerList:
        """Every trainer."""
        self._driver.monitor.advance(self._driver.clock())
        core, monitor, keeper = self._driver.core, self._driver.monitor, self._about().keeper
        found = status_view.trainers(core, monitor, self._launches, keeper)
        return TrainerList(trainers=found)

    async def status(self, _: Nothing) -> PoolStatus:
        """Pool, trainers, solves, node-seconds, U."""
        self._driver.monitor.advance(self._driver.clock())
        core, monitor = self._driver.core, self._driver.monitor
        use = await _in(self._sums, status_view.use, status_view.account(core, monitor))
        return status_view.status(self._about(), core, monitor, self._launches, use)

    async def pilots(self, _: Nothing) -> PilotList:
        """The pilots that registered."""
        return PilotList(pilots=status_view.pilots(self._roster, self._driver.clock()))

    async def nodes(self, _: Nothing) -> NodeList:
        """The pool's nodes, and what is set aside."""
        core, monitor = self._driver.core, self._driver.monitor
        monitor.advance(self._driver.clock())
        aside = status_view.set_aside(core, monitor.now_s)
        return NodeList(now_s=monitor.now_s, nodes=status_view.pool(core, monitor), set_aside=aside)

    async def clear(self, asked: SomeNodes) -> Cleared:
        """Nodes are well again: nothing is held against them any more."""
        nodes = [self._node(name) for name in asked.nodes]
        for node in nodes:
            await self._decided(self._driver.post(NodeCleared(node)), f"{node} is cleared")
        return Cleared(nodes=list(map(str, nodes)))

    async def wait(self, asked: SomeTrainers) -> Phases:
        """Where the trainers stand when all have ended, or after :data:`WAIT_S`."""
        core = self._driver.core
        outcomes = {name: core.past.get(TrainerId(name)) for name in asked.trainers}
        past = {name: Phase(outcome.value) for name, outcome in outcomes.items() if outcome is not None}
        named = [self._trainer(name) for name in asked.trainers if name not in past]
        waited = named if asked.trainers else list(core.trainers.values())
        try:
            async with asyncio.timeout(WAIT_S):
                while any(t.outcome is None for t in waited):
                    await self._driver.wait_for_change()
        except TimeoutError:
            pass
        return Phases(trainers=past | {str(t.id): t.phase for t in waited})

    async def cancel(self, asked: OneTrainer) -> Cancelled:
        """End a trainer."""
        trainer = self._trainer(asked.trainer)
        if trainer.outcome is not None:
            raise UserError(f"trainer {trainer.id} has ended already: {trainer.outcome.value}")
        await self._decided(self._driver.post(TrainerCancelled(trainer.id)), f"trainer {trainer.id} is cancelled")
        return Cancelled(trainer=trainer.id, phase=trainer.phase)

    async def explain(self, asked: OneTrainer) -> Explained:
        """Why a trainer holds the nodes that it holds."""
        trainer = self._trainer(asked.trainer)
        last = self._driver.monitor.last
        found = explain(*last, trainer.id) if last is not None else None
        sentences = found.sentences() if found is not None else [f"{trainer.id} was not part of the last plan."]
        if trainer.outcome is None:
            sentences.append(self._driver.core.pace_of(trainer).sentence())
        return Explained(trainer=trainer.id, sentences=sentences, decision=found)

    async def down(self, _: Nothing) -> Draining:
        """Drain. Answered when the journal has it; the coordinator ends when everything is gone."""
        if (decision := self.drain("pilot down")) is not None:
            await self._decided(decision, "the pool is drained")
        return Draining(run_dir=self._about().run_dir, nodes=len(self._driver.core.pool))

    def drain(self, reason: str) -> Future[None] | None:
        """Begin to shut down, once. Done when that is on the disk; None where it had begun before."""
        if self._driver.core.draining:
            return None
        log.info("draining: %s", reason)
        return self._driver.post(DrainRequested(reason))

    async def _decided(self, decision: Future[None], what: str) -> None:
        """Wait until the decision is on the disk.

        Raises
        ------
        PilotError
            There is no room for it. What came to pass is ``what``, as soon as there is.
        """
        written = asyncio.wrap_future(decision)
        while not (await asyncio.wait({written}, timeout=LOOK_S))[0]:
            if self._driver.trouble:
                written.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else looks
                raise PilotError(f"{what} only when there is room: {self._driver.trouble}", transient=True)
        await written

    def _refuse_when_draining(self) -> None:
        if self._driver.core.draining:
            raise UserError("the pool is being shut down; it takes no trainers")

    # --- arguments --------------------------------------------------------------------------------------------------

    def _name(self, given: str | None) -> TrainerId:
        core = self._driver.core
        known = core.trainers.keys() | core.past.keys() | self._arriving
        if given is None:
            return next(t for n in count(1) if (t := TrainerId(f"t{n}")) not in known)
        if not _NAME.fullmatch(given):
            raise UserError(f"not a name for a trainer: {given!r}; use letters, digits, '.', '_' and '-', at most 64")
        if given in known:
            raise UserError(f"there is a trainer named {given} already; choose another --name")
        return TrainerId(given)

    def _node(self, name: str) -> NodeId:
        if NodeId(name) not in self._driver.core.pool:
            raise UserError(f"no node named {name!r} in the pool; 'pilot nodes' lists them")
        return NodeId(name)

    def _trainer(self, name: str) -> Trainer:
        core = self._driver.core
        trainer = core.trainers.get(TrainerId(name))
        if outcome := core.past.get(TrainerId(name)):
            raise UserError(f"trainer {name} ended long ago: {outcome.value}; 'pilot report' tells of it")
        if trainer is None:
            known = ", ".join(core.trainers) or "none"
            raise UserError(f"no trainer named {name!r}; there are: {known}")
        return trainer


async def _in(thread: ThreadPoolExecutor, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What would hold up the event loop: files on a slow disk, long sums."""
    call = partial(function, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(thread, call)
