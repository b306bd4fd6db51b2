"""A pool that is down, read from its journal: answers read-only requests like its coordinator."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pilot.core.ids import TrainerId
from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import KeeperStatus, PoolStatus, TrainerHistory, TrainerStatus
from pilot.protocol.requests import Explained, NodeList, StudyList, TrainerList, TrialList
from pilot.rundir.journal import read
from pilot.rundir.rundir import RunDir
from pilot.service.durability.restore import restore
from pilot.service.requests import status_view, study_store
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.status_view import About
from pilot.service.requests.study_store import StudyStore
from pilot.service.settings import fresh_core, settings_of

NO_JOBS = KeeperStatus()

AT_WORK = frozenset({Phase.STARTING, Phase.RUNNING, Phase.PAUSED, Phase.CLOSING})
"""Phases that a trainer cannot be in without a coordinator."""


class PastPool:
    """The pool whose journal is in ``root``. Its methods are those of :class:`PoolClient`, and answer with the state
    at its end.

    Raises
    ------
    JournalError
        The journal cannot be read.
    """

    def __init__(self, root: Path) -> None:
        rundir = RunDir(root)
        contents = read(rundir.journal)
        restored = restore(contents, lambda: fresh_core(contents))
        self._core, self._monitor = restored.core, restored.books.monitor
        header = contents.header
        site, settings = header.configured[-1].site, settings_of(header.configured[-1].settings)
        self._launches = LaunchStore(rundir, header.coordinator, site.get("checkpoint_dir"))
        self._studies = StudyStore(rundir, self._launches)
        name, began_s = str(site.get("name", "")), header.started_unix_s
        only, damage = str(site.get("only_nodes") or ""), restored.flaws
        self._about = About(
            header.coordinator, name, "", str(root), began_s, NO_JOBS, settings.objective, only, False, damage=damage
        )

    def trainers(self) -> TrainerList:
        """All trainers, in the order of submission."""
        listed = status_view.trainers(self._core, self._monitor, self._launches, NO_JOBS)
        return TrainerList(trainers=[_interrupted(trainer) for trainer in listed])

    def status(self) -> PoolStatus:
        """The pool, the trainers, the decisions."""
        use = status_view.use(status_view.account(self._core, self._monitor))
        told = status_view.status(self._about, self._core, self._monitor, self._launches, use)
        return msgspec.structs.replace(told, trainers=[_interrupted(trainer) for trainer in told.trainers])

    def nodes(self) -> NodeList:
        """The nodes that it still had at its end."""
        now_s = self._monitor.now_s
        aside = status_view.set_aside(self._core, now_s)
        return NodeList(now_s=now_s, nodes=status_view.pool(self._core, self._monitor), set_aside=aside, remarks=[])

    def history(self, trainer: str) -> TrainerHistory:
        """A trainer's history."""
        told = status_view.history(self._about, self._core, self._monitor, self._launches, TrainerId(trainer))
        return msgspec.structs.replace(told, trainer=_interrupted(told.trainer))

    def explain(self, trainer: str) -> Explained:
        """Why a trainer had its nodes, or why it ended."""
        return status_view.explained(self._about, self._core, self._monitor, TrainerId(trainer))

    def studies(self) -> StudyList:
        """All studies, in the order of submission."""
        now_s = self._monitor.now_s
        each = [study_store.status(self._core, self._studies, study, now_s) for study in self._core.studies.values()]
        return StudyList(studies=each)

    def trials(self, study: str) -> TrialList:
        """A study and its trials."""
        found = study_store.find(self._core, study)
        return study_store.trials(self._core, self._studies, found, self._monitor.now_s)


def _interrupted(trainer: TrainerStatus) -> TrainerStatus:
    """``trainer`` in a pool that is down. If the coordinator crashed, the journal ends with trainers at work: they are
    queued now, and continue from their checkpoints once the pool is up again.
    """
    if trainer.phase not in AT_WORK:
        return trainer
    waits = f"it was {trainer.phase} when the coordinator ended; waiting until the pool is up again"
    return msgspec.structs.replace(
        trainer, phase=Phase.QUEUED, waits=waits, nodes=[], target=[], warming=[], samples_per_s=None, left_s=None
    )
