"""Asks the samplers of studies, in a process that can be killed: a sampler or a user's space may take forever.

The first question to a process includes everything that the coordinator knows about the study, so killing a process
loses nothing. Questions are answered one after the other. A repeated question, for example after a restart, gets the
same answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec

from pilot.core.commands import AskTrial, TellTrial
from pilot.core.errors import PilotError
from pilot.core.study.events import TrialAsked, TrialNotAsked, TrialTold
from pilot.core.study.study import Study
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.planning.child_process import ChildProcess
from pilot.service.requests.study_store import StudyStore
from pilot.submission.study_definition import Asked, KnownTrial, StudyDefinition

log = logging.getLogger(__name__)

ANSWER_S = 60.0
"""Time limit for an answer, including the import of Optuna."""


class SamplerRequest(msgspec.Struct, frozen=True):
    """A question. ``definition`` and ``known`` are sent with the first one about the study in ``file``."""

    file: str
    number: int
    tell: bool = False
    value: float | None = None
    definition: StudyDefinition | None = None
    known: list[KnownTrial] = []


class SamplerProcess:
    """Takes studies from the driver's core, and posts the answers to it."""

    def __init__(self, store: StudyStore, scratch: Path, driver: LiveDriver) -> None:
        self._store = store
        self._scratch = scratch
        self._driver = driver
        self._child: ChildProcess | None = None
        self._opened: set[str] = set()
        self._waiting: asyncio.Queue[AskTrial | TellTrial] = asyncio.Queue()

    def perform(self, command: AskTrial | TellTrial) -> None:
        """Begin; the completion is posted later."""
        self._waiting.put_nowait(command)

    async def run(self) -> None:
        """Answer until cancelled; then kill the child and remove its files."""
        try:
            while True:
                self._driver.post(await self._answered(await self._waiting.get()))
        finally:
            await self._kill()
            with suppress(RuntimeError):  # no thread can be started: the next coordinator clears it
                await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    async def _answered(self, command: AskTrial | TellTrial) -> TrialAsked | TrialNotAsked | TrialTold:
        answer = await self._ask(command)
        if isinstance(command, TellTrial):
            return TrialTold(command.study, command.number, answer.error)
        if not answer.error:
            try:
                await asyncio.to_thread(self._store.add_trial, command, answer.parameters)
                return TrialAsked(command.study, command.number, command.spec, answer.parameters)
            except (PilotError, RuntimeError) as error:  # no space, or no thread
                answer = Asked(error=str(error), again=True)
        if not answer.exhausted:
            log.warning("no parameters for trial %d of %s: %s", command.number, command.study, answer.error)
        return TrialNotAsked(command.study, command.number, answer.error, answer.again, answer.exhausted)

    async def _ask(self, command: AskTrial | TellTrial) -> Asked:
        try:
            async with asyncio.timeout(ANSWER_S):
                question = await self._question(command)
                child = await self._warm()
                answer = await child.ask(question, Asked)
            self._opened.add(question.file)
            if answer.error and not answer.exhausted:
                self._opened.discard(question.file)
            return answer
        except (TimeoutError, EOFError, OSError, RuntimeError) as error:
            await self._kill()
            why = f"no answer within {ANSWER_S:g} s" if isinstance(error, TimeoutError) else "its process ended"
            return Asked(error=f"the sampler was stopped: {why}", again=True)
        except PilotError as error:
            return Asked(error=str(error), again=error.transient)

    async def _question(self, command: AskTrial | TellTrial) -> SamplerRequest:
        study = self._driver.core.studies.get(command.study)
        if study is None:
            raise PilotError(f"there is no study {command.study}")
        definition = await asyncio.to_thread(self._store.definition, study.spec)
        file = str(self._store.journal(study.spec))
        tell = isinstance(command, TellTrial)
        value = command.value if isinstance(command, TellTrial) else None
        if file in self._opened and self._child is not None:
            return SamplerRequest(file, command.number, tell, value)
        known = [_known(study, number) for number in range(len(study.trials)) if study.trials[number].asked]
        return SamplerRequest(file, command.number, tell, value, definition, known)

    async def _warm(self) -> ChildProcess:
        if self._child is None:
            self._opened.clear()
            await asyncio.to_thread(self._scratch.mkdir, mode=0o700, parents=True, exist_ok=True)
            self._child = await ChildProcess.start("pilot.service.planning.sampler_child", scratch=self._scratch)
        return self._child

    async def _kill(self) -> None:
        child, self._child = self._child, None
        self._opened.clear()
        if child is not None:
            await child.kill()


def _known(study: Study, number: int) -> KnownTrial:
    trial = study.trials[number]
    value = trial.values[0] if trial.values and math.isfinite(trial.values[0]) else None
    return KnownTrial(number, trial.parameters, trial.told, value)
