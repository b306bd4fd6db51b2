"""Answers the CLI's requests: one method per verb of :mod:`pilot.protocol.requests`."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from pilot.core import events
from pilot.core.commands import Outcome
from pilot.core.curves.curve import Curve
from pilot.core.errors import PilotError, UserError
from pilot.core.events import Event
from pilot.core.ids import StudyId, TrainerId, TrainerUid
from pilot.core.trainer.trainer import AT_REST, Phase, Trainer
from pilot.protocol import requests, wire
from pilot.protocol.node_names import find_node
from pilot.protocol.pool_status import Answer, PoolStatus
from pilot.protocol.requests import A, R
from pilot.rundir.rundir import RunDir
from pilot.service.agents.server import Peer, Server
from pilot.service.durability.learned import Learned
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.requests.launch_store import name_is_taken
from pilot.service.requests.status_view import PoolView, trainer_of, utilisation_of
from pilot.service.requests.study_api import StudyApi
from pilot.site.pilot_counts import Counts, check
from pilot.site.site import Site
from pilot.submission.submission import Submission, check_given, with_between, with_check

log = logging.getLogger(__name__)

CHECK_S = 0.5
"""A request that waits for the disk checks this often whether it is full."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[dict[str, Any]], Awaitable[Answer]]


def _typed(verb: requests.Verb[..., A, R], method: Callable[[A], Awaitable[R] | R]) -> tuple[str, Handler]:
    """Look up ``verb`` by name; its arguments are validated before ``method`` gets them."""

    async def handle(arguments: dict[str, Any]) -> Answer:
        answer = method(msgspec.convert(arguments, verb.arguments))
        return await answer if isinstance(answer, Awaitable) else answer

    return verb.name, handle


class Api:
    """Answers requests, each in its own task because some wait."""

    def __init__(
        self,
        site: Site,
        server: Server,
        driver: LiveDriver,
        view: PoolView,
        scale: Callable[[Counts | None], Counts | None],
        use_again: Callable[[str], None],
        learned: Learned,
    ) -> None:
        self._site = site
        self._server = server
        self._driver = driver
        self._view = view
        self._launches = view.launches
        self._scale = scale
        self._use_again = use_again
        self._learned = learned
        self._tasks: set[asyncio.Task[None]] = set()
        self._arriving: set[TrainerId] = set()
        self._disk, self._sums = ThreadPoolExecutor(1, "disk"), ThreadPoolExecutor(1, "sums")
        for thread in (self._disk, self._sums):
            thread.submit(int)  # created before the host's limit of threads is reached
        studies = StudyApi(site, driver, view, self._decide)
        self._handlers: dict[str, Handler] = dict(
            [
                _typed(requests.SUBMIT, self.submit),
                _typed(requests.LIST, lambda _: view.trainers()),
                _typed(requests.STATUS, self.status),
                _typed(requests.PILOTS, lambda _: view.pilots()),
                _typed(requests.NODES, lambda _: view.nodes()),
                _typed(requests.CLEAR, self.clear),
                _typed(requests.WAIT, self.wait),
                _typed(requests.CANCEL, self.cancel),
                _typed(requests.SCALE, self.scale),
                _typed(requests.RESUME, self.resume),
                _typed(requests.HOLD, self.hold),
                _typed(requests.RELEASE, self.release),
                _typed(requests.REMOVE, self.remove),
                _typed(requests.EXPLAIN, lambda asked: view.explain(asked.trainer)),
                _typed(requests.HISTORY, lambda asked: view.history(asked.trainer)),
                _typed(requests.DOWN, self.down),
                _typed(requests.STUDY_RUN, studies.run),
                _typed(requests.STUDIES, studies.studies),
                _typed(requests.STUDY_TRIALS, studies.trials),
                _typed(requests.STUDY_STOP, studies.stop),
                _typed(requests.STUDY_RESUME, studies.resume),
            ]
        )

    def answer(self, link: Peer, request: wire.Request) -> None:
        """Answer a request of a user."""
        task = asyncio.get_running_loop().create_task(self._answer(link, request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def answered(self, limit_s: float) -> None:
        """Wait until every request has its answer; one that waits for something else gets none."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)

    async def _answer(self, link: Peer, request: wire.Request) -> None:
        self._server.send(link, await self.reply(request.verb, request.arguments))

    async def reply(self, verb: str, arguments: dict[str, Any]) -> wire.Reply:
        """The reply to ``verb``; a :class:`PilotError` becomes its error and exit status."""
        try:
            if verb not in self._handlers:
                raise UserError(f"unknown verb {verb!r}; known: {', '.join(self._handlers)}")
            return wire.Reply(result=await self._handlers[verb](arguments))
        except msgspec.ValidationError as error:
            return wire.Reply(error=f"{verb}: {error}", exit_status=UserError.exit_status)
        except PilotError as error:
            return wire.Reply(error=str(error), exit_status=error.exit_status)
        except Exception:
            log.exception("internal error while answering %s", verb)
            its_log = RunDir(Path(self._view.about().run_dir)).log
            return wire.Reply(error=f"{verb} failed in the coordinator; the traceback is in {its_log}", exit_status=1)

    # --- verbs ----------------------------------------------------------------------------------------------------

    async def submit(self, given: Submission) -> requests.Submitted:
        """Submit a new trainer. Answered once it is in the journal."""
        self._refuse_when_draining()
        trainer = self._name(given.name, replaces=given.replace)
        spec = given.spec(trainer, TrainerUid(secrets.token_hex(16)))
        launch = with_between(given.launch, self._site, spec.nodes_per_replica)
        if self._site.node_types and spec.types:
            check(self._site, dict.fromkeys(spec.types, 0))
        spec = self._learned.with_known(with_check(spec, given.check, given.launch, self._site))
        # A failing user function is refused here: the core could not continue with it.
        self._driver.core.config.objective(spec, spec.curve or Curve.proportional())
        start = given.start.files if given.start is not None else ()
        self._arriving.add(trainer)
        try:
            await _in(self._disk, self._launches.add, spec, launch, start)
        finally:
            self._arriving.discard(trainer)
        self._refuse_when_draining()
        replaced = self._driver.core.trainers.get(trainer)
        if replaced is not None or trainer in self._driver.core.past:
            self._driver.post(events.TrainerRemoved(trainer))
        await self._decide(events.TrainerSubmitted(spec), f"trainer {trainer} is submitted")
        if replaced is not None:
            await _in(self._disk, self._launches.remove, replaced.spec)
        return self._view.submitted(trainer)

    async def status(self, _: requests.Nothing) -> PoolStatus:
        """Pool, trainers, solves, node-seconds, U."""
        return self._view.status(await _in(self._sums, utilisation_of, self._view.account()))

    async def clear(self, asked: requests.SomeNodes) -> requests.Cleared:
        """Forget the failures of these nodes."""
        kept = {aside.node for aside in self._view.about().keeper.set_aside}.intersection(asked.nodes)
        nodes = [find_node(self._driver.core.pool.nodes, name) for name in asked.nodes if name not in kept]
        for name in sorted(kept):
            self._use_again(name)
        for node in nodes:
            await self._decide(events.NodeCleared(node), f"{node} is cleared")
        return requests.Cleared(nodes=[*sorted(kept), *nodes])

    async def wait(self, asked: requests.Wait) -> requests.Phases:
        """The trainers' phases when all have ended, or after the requested time."""
        core = self._driver.core
        outcomes = {name: core.past.get(TrainerId(name)) for name in asked.trainers}
        past = {name: Phase(outcome.value) for name, outcome in outcomes.items() if outcome is not None}
        named = [self._trainer(name) for name in asked.trainers if name not in past]
        waited = named if asked.trainers else list(core.trainers.values())
        try:
            async with asyncio.timeout(min(asked.limit_s, requests.LONGEST_WAIT_S)):
                while any(t.phase not in AT_REST for t in waited):
                    await self._driver.wait_for_change()
        except TimeoutError:
            pass
        return requests.Phases(trainers=past | {str(t.id): t.phase for t in waited})

    async def cancel(self, asked: requests.OneTrainer) -> requests.TrainerPhase:
        """End a trainer."""
        trainer = self._unended(asked.trainer)
        return await self._stands(trainer, events.TrainerCancelled(trainer.id), "is cancelled")

    async def scale(self, asked: requests.Pilots) -> requests.Scaled:
        """Change the number of pilots."""
        self._refuse_when_draining()
        wanted = asked.by_type or (None if asked.pilots is None else {"": asked.pilots})
        check(self._site, wanted)
        kept = self._scale(wanted)
        by_type = dict(kept) if kept is not None and "" not in kept else None
        pilots = None if kept is None else sum(kept.values())
        return requests.Scaled(pilots=pilots, by_type=by_type, nodes=len(self._driver.core.pool))

    async def resume(self, asked: requests.Resumption) -> requests.TrainerPhase:
        """Continue a trainer that ended early, from its newest checkpoint or from scratch; from scratch also one that
        is held. One that runs or waits tries types of nodes again on which it ran out of memory.
        """
        self._refuse_when_draining()
        trainer = self._trainer(asked.trainer)
        if trainer.open and trainer.excluded and not asked.from_scratch:
            event = events.TrainerResumed(trainer.id, asked.budget_node_hours)  # its script stays as it is
            return await self._stands(trainer, event, "may use all types of nodes again")
        instead = "there is nothing to resume"
        if trainer.held:
            instead = f"pilot release {asked.trainer} gives it nodes again, once those that it had are free"
        if not (asked.from_scratch and trainer.rests):
            trainer = self._ended(asked.trainer, instead)
        if asked.from_scratch and asked.launch.ddp:
            raise UserError(f"trainer {trainer.id} keeps its own checkpoints (--ddp): move them away, and resume it")
        if trainer.outcome is Outcome.FINISHED:
            more = f"pilot submit --from {trainer.id} starts a new one from its last checkpoint"
            raise UserError(f"trainer {trainer.id} has finished; {more}, for example with more epochs")
        if asked.budget_node_hours is None and trainer.outcome is Outcome.STOPPED and trainer.usage.spent:
            raise UserError(f"trainer {trainer.id} stopped: {trainer.reason}; pass a larger total --budget")
        check_given(asked.launch)
        await _in(self._disk, self._launches.change, trainer.spec, asked.launch)
        event = events.TrainerResumed(trainer.id, asked.budget_node_hours, asked.from_scratch)
        return await self._stands(trainer, event, "starts from scratch" if asked.from_scratch else "goes on")

    async def hold(self, asked: requests.OneTrainer) -> requests.TrainerPhase:
        """Take a trainer's nodes away."""
        trainer = self._unended(asked.trainer)
        return await self._stands(trainer, events.TrainerHeld(trainer.id), "is held")

    async def release(self, asked: requests.OneTrainer) -> requests.TrainerPhase:
        """Give a held trainer nodes again."""
        trainer = self._unended(asked.trainer)
        if not trainer.held:
            raise UserError(f"trainer {trainer.id} is not held")
        return await self._stands(trainer, events.TrainerReleased(trainer.id), "is released")

    async def _stands(self, trainer: Trainer, event: Event, what: str) -> requests.TrainerPhase:
        await self._decide(event, f"trainer {trainer.id} {what}")
        return requests.TrainerPhase(trainer=trainer.id, phase=trainer.phase, held=trainer.held)

    async def remove(self, asked: requests.SomeTrainers) -> requests.Removed:
        """Delete ended trainers, with their files."""
        trainers = {name: self._ended(name, f"pilot cancel {name} ends it") for name in asked.trainers}.values()
        removed = [self._driver.post(events.TrainerRemoved(trainer.id)) for trainer in trainers]
        for trainer in trainers:
            self._launches.forget(trainer.id)
        for trainer, decision in zip(trainers, removed, strict=True):
            await self._decided(decision, f"trainer {trainer.id} is removed")
            await _in(self._disk, self._launches.remove, trainer.spec)
        return requests.Removed(trainers=[str(trainer.id) for trainer in trainers])

    async def down(self, _: requests.Nothing) -> requests.Draining:
        """Drain. Answered once this is in the journal; the coordinator exits when everything is gone."""
        if (decision := self.drain("pilot down")) is not None:
            await self._decided(decision, "the pool is drained")
        return requests.Draining(run_dir=self._view.about().run_dir, nodes=len(self._driver.core.pool))

    def drain(self, reason: str) -> Future[None] | None:
        """Start shutting down, once. Completes when that is on disk; None if it was already shutting down."""
        if self._driver.core.draining:
            return None
        return self._driver.post(events.DrainRequested(reason))

    async def _decide(self, event: Event, what: str) -> None:
        await self._decided(self._driver.post(event), what)

    async def _decided(self, decision: Future[None], what: str) -> None:
        """Wait until the decision is on the disk.

        Raises
        ------
        PilotError
            There is no space for it. ``what`` is what will have happened once there is.
        """
        written = asyncio.wrap_future(decision)
        while not (await asyncio.wait({written}, timeout=CHECK_S))[0]:
            if self._driver.trouble:
                written.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody waits for it
                raise PilotError(f"{what} once there is space: {self._driver.trouble}", transient=True)
        await written

    def _refuse_when_draining(self) -> None:
        if self._driver.core.draining:
            raise UserError("the pool is shutting down; run pilot up afterwards to continue it")

    # --- arguments --------------------------------------------------------------------------------------------------

    def _name(self, given: str | None, *, replaces: bool) -> TrainerId:
        core = self._driver.core
        known = core.trainers.keys() | core.past.keys() | self._arriving
        if given is None:
            return next(t for n in count(1) if (t := TrainerId(f"t{n}")) not in known)
        if not _NAME.fullmatch(given):
            raise UserError(f"not a valid trainer name: {given!r}; use letters, digits, '.', '_' and '-', at most 64")
        trainer = core.trainers.get(TrainerId(given))
        outcome = trainer.outcome if trainer is not None else core.past.get(TrainerId(given))
        if (study := core.studies.get(StudyId(given.rpartition("-")[0]))) and given.rpartition("-")[2].isdecimal():
            raise UserError(f"{given} is a name of a trial of study {study.id}; choose another --name")
        if given in known and not (replaces and outcome is not None and given not in self._arriving):
            raise UserError(name_is_taken(given, outcome))
        return TrainerId(given)

    def _ended(self, name: str, instead: str) -> Trainer:
        """The trainer of this name; if it has not ended, the error tells the user what to do ``instead``."""
        trainer = self._trainer(name)
        if trainer.outcome is None:
            raise UserError(
                f"trainer {name} has not ended: it is {'held' if trainer.held else trainer.phase}; {instead}"
            )
        if trainer.id in self._arriving:
            raise UserError(f"trainer {trainer.id} is being replaced by another one")
        return trainer

    def _unended(self, name: str) -> Trainer:
        trainer = self._trainer(name)
        if trainer.outcome is not None:
            raise UserError(f"trainer {trainer.id} has already ended ({trainer.outcome.value})")
        return trainer

    def _trainer(self, name: str) -> Trainer:
        return trainer_of(self._driver.core, name)


async def _in(thread: ThreadPoolExecutor, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run in a thread what would block the event loop: files on a slow disk, long computations."""
    call = partial(function, *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(thread, call)
