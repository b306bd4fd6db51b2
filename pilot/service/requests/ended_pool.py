"""A pool that is down, read from its journal: answers read-only requests like its coordinator."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pilot.core.errors import JournalError, UserError
from pilot.core.plan.prognosis import Prognosis
from pilot.core.trainer.trainer import Phase, Trainer
from pilot.protocol.pool_status import KeeperStatus, TrainerStatus
from pilot.rundir.journal import read
from pilot.rundir.rundir import RunDir
from pilot.service.durability.restore import restore
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.status_view import About, PoolView
from pilot.service.requests.study_store import StudyStore
from pilot.service.settings import fresh_core, settings_of

AT_WORK = frozenset({Phase.STARTING, Phase.RUNNING, Phase.PAUSED, Phase.CLOSING})
"""Phases that a trainer cannot be in without a coordinator."""


class PastPool(PoolView):
    """The pool whose journal is in ``root``. It answers with the state at its end.

    Raises
    ------
    UserError
        The journal cannot be read.
    """

    def __init__(self, root: Path) -> None:
        rundir = RunDir(root)
        try:
            contents = read(rundir.journal)
            restored = restore(contents, lambda: fresh_core(contents))
        except JournalError as error:
            raise UserError(str(error)) from None
        header, monitor = contents.header, restored.books.monitor
        site, settings = header.configured[-1].site, settings_of(header.configured[-1].settings)
        about = About(
            coordinator=header.coordinator,
            site=str(site.get("name", "")),
            endpoint="",
            run_dir=str(root),
            began_unix_s=header.started_unix_s,
            keeper=KeeperStatus(),
            objective=settings.objective,
            only_nodes=str(site.get("only_nodes") or ""),
            up=False,
            damage=restored.flaws,
        )
        launches = LaunchStore(rundir, header.coordinator, site.get("checkpoint_dir"))
        studies = StudyStore(rundir, launches)
        super().__init__(restored.core, monitor, launches, studies, lambda: about, lambda: monitor.now_s)

    def _trainer(self, trainer: Trainer, waits: str, queued: Prognosis | None) -> TrainerStatus:
        """If the coordinator crashed, the journal ends with trainers at work: they are queued now, and continue from
        their checkpoints once the pool is up again.
        """
        status = super()._trainer(trainer, waits, queued)
        if status.phase not in AT_WORK:
            return status
        waits = f"it was {status.phase} when the coordinator ended; waiting until the pool is up again"
        return msgspec.structs.replace(
            status, phase=Phase.QUEUED, waits=waits, nodes=[], target=[], warming=[], samples_per_s=None, left_s=None
        )
