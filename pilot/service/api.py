"""What the CLI can ask of the coordinator: one method per verb, plain data in and out."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from itertools import count
from typing import Any

import msgspec

from pilot.core.curve import Curve
from pilot.core.errors import PilotError, UserError
from pilot.core.events import DrainRequested, TrainerCancelled, TrainerSubmitted
from pilot.core.explain import explain
from pilot.core.ids import TrainerId
from pilot.core.spec import TrainerSpec
from pilot.core.trainer import Trainer
from pilot.io import wire
from pilot.service import status_view
from pilot.service.launch_store import LaunchSpec, LaunchStore
from pilot.service.live_driver import LiveDriver
from pilot.service.roster import Roster
from pilot.service.server import Peer, Server
from pilot.service.status_view import Plain

log = logging.getLogger(__name__)

WAIT_S = 20.0
"""A ``wait`` is answered after so long at the latest; the CLI then asks again."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Verb = Callable[[dict[str, Any]], Awaitable[Any]]


class Submission(LaunchSpec, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``submit``: how the script is started, and what the planner should know."""

    name: str | None = None
    min_nodes: int = 1
    max_nodes: int = 64
    curve: list[tuple[float, float]] | None = None
    fixed_curve: bool = False
    rescale_up_s: float = 20.0
    rescale_down_s: float = 10.0
    priority: float = 1.0

    def spec(self, trainer: TrainerId) -> TrainerSpec:
        """What the core is told."""
        if self.fixed_curve and self.curve is None:
            raise UserError("--fixed-curve needs a --curve to keep")
        return TrainerSpec(
            trainer=trainer,
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            curve=Curve.of(self.curve) if self.curve is not None else None,
            fixed_curve=self.fixed_curve,
            rescale_up_s=self.rescale_up_s,
            rescale_down_s=self.rescale_down_s,
            priority=self.priority,
        )


class Api:
    """Answers requests; each in a task of its own, since some wait."""

    def __init__(
        self, server: Server, driver: LiveDriver, roster: Roster, launches: LaunchStore, about: Callable[[], Plain]
    ) -> None:
        self._server = server
        self._driver = driver
        self._roster = roster
        self._launches = launches
        self._about = about
        self._tasks: set[asyncio.Task[None]] = set()
        self._verbs: dict[str, Verb] = {
            "submit": self.submit,
            "list": self.list_trainers,
            "status": self.status,
            "wait": self.wait,
            "cancel": self.cancel,
            "explain": self.explain,
            "down": self.down,
            "pilots": self.pilots,
        }

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
            if verb not in self._verbs:
                raise UserError(f"unknown verb {verb!r}; there are: {', '.join(self._verbs)}")
            return wire.Reply(result=await self._verbs[verb](arguments))
        except msgspec.ValidationError as error:
            return wire.Reply(error=f"{verb}: {error}", exit_status=UserError.exit_status)
        except PilotError as error:
            return wire.Reply(error=str(error), exit_status=error.exit_status)
        except Exception:
            log.exception("a bug of ours, in answering %s", verb)
            return wire.Reply(error=f"{verb} failed in the coordinator; its log has the details", exit_status=1)

    # --- verbs ----------------------------------------------------------------------------------------------------

    async def submit(self, arguments: dict[str, Any]) -> dict[str, str]:
        """A new trainer. Answered when the journal has it."""
        given = msgspec.convert(arguments, Submission)
        if self._driver.core.draining:
            raise UserError("the pool is being shut down; it takes no trainers")
        trainer = self._name(given.name)
        spec = given.spec(trainer)
        # A user's function that fails is refused here: the core could not go on.
        self._driver.core.config.objective(spec, spec.curve or Curve.proportional())
        launch = {field: getattr(given, field) for field in LaunchSpec.__struct_fields__}
        self._launches.add(trainer, LaunchSpec(**launch))
        await asyncio.wrap_future(self._driver.post(TrainerSubmitted(spec)))
        log.info("trainer %s was submitted: %s", trainer, given.script)
        return {"trainer": trainer, "directory": str(self._launches.directory(trainer))}

    async def list_trainers(self, arguments: dict[str, Any]) -> list[Plain]:
        """One row per trainer."""
        _no(arguments)
        self._driver.monitor.advance(self._driver.clock())
        return status_view.trainers(self._driver.core, self._driver.monitor, self._launches)

    async def status(self, arguments: dict[str, Any]) -> Plain:
        """Pool, trainers, solves, node-seconds, U."""
        _no(arguments)
        self._driver.monitor.advance(self._driver.clock())
        core, monitor = self._driver.core, self._driver.monitor
        shown = {**self._about(), **status_view.summary(core, monitor)}
        shown["trainers"] = status_view.trainers(core, monitor, self._launches)
        return {**shown, "utilisation": await asyncio.to_thread(status_view.use, status_view.account(core, monitor))}

    async def pilots(self, arguments: dict[str, Any]) -> list[Plain]:
        """The pilots that registered."""
        _no(arguments)
        return status_view.pilots(self._roster, self._driver.clock())

    async def wait(self, arguments: dict[str, Any]) -> dict[str, str]:
        """Trainer → phase, when all of ``trainers`` (none given: all) have ended, or after :data:`WAIT_S`."""
        names = msgspec.convert(arguments, dict[str, list[str]]).get("trainers", [])
        waited = [self._trainer(name) for name in names] or list(self._driver.core.trainers.values())
        try:
            async with asyncio.timeout(WAIT_S):
                while any(t.outcome is None for t in waited):
                    await self._driver.wait_for_change()
        except TimeoutError:
            pass
        return {t.id: t.phase.value for t in waited}

    async def cancel(self, arguments: dict[str, Any]) -> dict[str, str]:
        """End a trainer."""
        trainer = self._trainer(_only(arguments, "trainer"))
        if trainer.outcome is not None:
            raise UserError(f"trainer {trainer.id} has ended already: {trainer.outcome.value}")
        await asyncio.wrap_future(self._driver.post(TrainerCancelled(trainer.id)))
        return {"trainer": trainer.id, "phase": trainer.phase.value}

    async def explain(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Why a trainer holds the nodes that it holds."""
        trainer = self._trainer(_only(arguments, "trainer"))
        last = self._driver.monitor.last
        found = explain(*last, trainer.id) if last is not None else None
        sentences = found.sentences() if found is not None else [f"{trainer.id} was not part of the last plan."]
        if trainer.outcome is None:
            sentences.append(self._driver.core.pace_of(trainer).sentence())
        return {**(asdict(found) if found is not None else {"trainer": trainer.id}), "sentences": sentences}

    async def down(self, arguments: dict[str, Any]) -> dict[str, int]:
        """Drain. Answered at once; the coordinator ends when everything is gone."""
        _no(arguments)
        self.drain("pilot down")
        return {"nodes": len(self._driver.core.pool)}

    def drain(self, reason: str) -> None:
        """Begin to shut down, once."""
        if not self._driver.core.draining:
            log.info("draining: %s", reason)
            self._driver.post(DrainRequested(reason))

    # --- arguments --------------------------------------------------------------------------------------------------

    def _name(self, given: str | None) -> TrainerId:
        known = self._driver.core.trainers
        if given is None:
            return next(t for n in count(1) if (t := TrainerId(f"t{n}")) not in known)
        if not _NAME.fullmatch(given):
            raise UserError(f"not a name for a trainer: {given!r}; use letters, digits, '.', '_' and '-', at most 64")
        if given in known:
            raise UserError(f"there is a trainer named {given} already; choose another --name")
        return TrainerId(given)

    def _trainer(self, name: str) -> Trainer:
        trainer = self._driver.core.trainers.get(TrainerId(name))
        if trainer is None:
            known = ", ".join(self._driver.core.trainers) or "none"
            raise UserError(f"no trainer named {name!r}; there are: {known}")
        return trainer


def _only(arguments: dict[str, Any], name: str) -> str:
    return msgspec.convert(arguments, dict[str, str]).get(name, "")


def _no(arguments: dict[str, Any]) -> None:
    if arguments:
        raise UserError(f"unknown argument {min(arguments)}")
