"""Answers the CLI's requests about studies."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace

from pilot.core.errors import UserError
from pilot.core.events import Event
from pilot.core.ids import StudyId, TrainerUid
from pilot.core.study.events import StudyResumed, StudyStopped, StudySubmitted
from pilot.core.study.study import TRIALS_MAX, Study
from pilot.protocol.requests import Nothing, OneStudy, StudyList, StudyResumption, StudyStatus, TrialList
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.requests import study_store
from pilot.service.requests.status_view import PoolView
from pilot.site.site import Site
from pilot.submission.study_definition import StudyDefinition, differences
from pilot.submission.submission import with_between, with_check

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")

Decide = Callable[[Event, str], Awaitable[None]]


class StudyApi:
    """One method per verb of :mod:`pilot.protocol.requests`. ``decide`` waits until the decision is on disk."""

    def __init__(self, site: Site, driver: LiveDriver, view: PoolView, decide: Decide) -> None:
        self._site = site
        self._driver = driver
        self._view = view
        self._store = view.study_store
        self._decide = decide
        self._arriving: set[str] = set()

    async def run(self, given: StudyDefinition) -> StudyStatus:
        """Submit a study. Answered once it is in the journal."""
        self._check_name(given.name)
        with_between(given.launch, self._site)
        spec = given.spec(TrainerUid(secrets.token_hex(16)), self._driver.clock())
        spec = replace(spec, template=with_check(spec.template, given.check, given.launch, self._site))
        self._arriving.add(given.name)
        try:
            await asyncio.to_thread(self._store.add, spec, given)
        finally:
            self._arriving.discard(given.name)
        if self._driver.core.draining:
            raise UserError("the pool is shutting down; run pilot up afterwards to continue it")
        await self._decide(StudySubmitted(spec), f"study {given.name} is submitted")
        return await self._status(self._study(given.name))

    async def studies(self, _: Nothing) -> StudyList:
        """Every study."""
        return StudyList(studies=[await self._status(study) for study in self._driver.core.studies.values()])

    async def trials(self, asked: OneStudy) -> TrialList:
        """A study's trials."""
        study = self._study(asked.study)
        await asyncio.to_thread(self._store.definition, study.spec)  # from the disk only once
        return self._view.trials(study.id)

    async def stop(self, asked: OneStudy) -> StudyStatus:
        """Stop a study: shelve its trials where they are."""
        study = self._study(asked.study)
        if study.stopped:
            raise UserError(f"study {study.id} is already stopped: {study.stopped}")
        await self._decide(StudyStopped(study.id), f"study {study.id} stops")
        return await self._status(study)

    async def resume(self, asked: StudyResumption) -> StudyStatus:
        """Continue it, possibly with more trials."""
        study = self._study(asked.study)
        if asked.space is not None:
            await self._same_space(study, asked.space)
        if not study.stopped and not asked.more:
            raise UserError(f"study {study.id} has not stopped; pilot study add gives it more trials")
        if asked.more and study.exhausted:
            raise UserError(f"study {study.id} has tried every point of its search space")
        deadline_s = study.spec.deadline_s
        if deadline_s is not None and deadline_s <= self._driver.clock():
            raise UserError(f"the deadline of study {study.id} has passed; submit a new study with another --name")
        total = study.total + asked.more
        if total > TRIALS_MAX:
            raise UserError(f"a study has at most {TRIALS_MAX} trials, and {study.id} has {study.total}")
        await self._decide(StudyResumed(study.id, total), f"study {study.id} goes on")
        return await self._status(study)

    async def _same_space(self, study: Study, expected: StudyDefinition) -> None:
        found = differences(await asyncio.to_thread(self._store.definition, study.spec), expected)
        if found:
            raise UserError(f"the search space of study {study.id} differs: {'; '.join(found)}; submit a new study")

    def _check_name(self, name: str) -> None:
        core = self._driver.core
        if not _NAME.fullmatch(name):
            raise UserError(f"not a valid study name: {name!r}; use letters, digits, '.', '_' and '-', at most 48")
        if StudyId(name) in core.studies or name in self._arriving:
            raise UserError(f"a study named {name} already exists; choose another --name, or pilot study resume {name}")
        trial = re.compile(rf"{re.escape(name)}-\d+")
        if taken := next((t for t in (*core.trainers, *core.past) if trial.fullmatch(t)), None):
            raise UserError(f"a trainer is named {taken}, like a trial of {name}; choose another --name")

    def _study(self, name: str) -> Study:
        return study_store.find(self._driver.core, name)

    async def _status(self, study: Study) -> StudyStatus:
        await asyncio.to_thread(self._store.definition, study.spec)  # from the disk only once
        return self._view.study(study.id)
