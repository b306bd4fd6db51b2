"""The definitions of submitted studies, and what the CLI shows of these and of the core's studies, pool up or down."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import msgspec

from pilot.core.commands import AskTrial
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, PilotError, UserError
from pilot.core.ids import StudyId, TrainerId
from pilot.core.study.study import Parameters, Study, StudySpec, Trial
from pilot.core.trainer.budget import hours
from pilot.host import private_folder
from pilot.host.files import publish
from pilot.protocol.requests import StudyStatus, TrialList, TrialStatus
from pilot.rundir import trainer_folder
from pilot.rundir.rundir import RunDir
from pilot.service.requests.launch_store import LaunchStore
from pilot.submission.study_definition import StudyDefinition


class StudyStore:
    """``studies/<name>-<uid>/`` in the run directory: ``study.json`` (0600) and Optuna's journal."""

    def __init__(self, rundir: RunDir, launches: LaunchStore) -> None:
        self._root = rundir.root / "studies"
        self._launches = launches
        self._definitions: dict[StudyId, StudyDefinition] = {}

    def folder(self, study: StudySpec) -> Path:
        """The study's folder."""
        return self._root / trainer_folder.name(study.template.trainer, study.template.uid)

    def journal(self, study: StudySpec) -> Path:
        """Optuna's file, which optuna-dashboard opens."""
        return self.folder(study) / "optuna.journal"

    def add(self, study: StudySpec, definition: StudyDefinition) -> None:
        """Record a study, before it is in the journal; :class:`PilotError` if writing fails."""
        try:
            private_folder.make(self.folder(study))
            publish(self.folder(study) / "study.json", msgspec.json.encode(definition) + b"\n")
        except OSError as error:
            raise PilotError(f"cannot record the study {study.study}: {error.strerror}", transient=True) from None
        self._definitions[study.study] = definition

    def definition(self, study: StudySpec) -> StudyDefinition:
        """A submitted definition, read from disk after a restart; :class:`JournalError` if it is unreadable."""
        if study.study not in self._definitions:
            path = self.folder(study) / "study.json"
            try:
                self._definitions[study.study] = msgspec.json.decode(path.read_bytes(), type=StudyDefinition)
            except (OSError, msgspec.DecodeError, PilotError) as error:
                raise JournalError(f"cannot read the study {study.study} from {path}: {error}") from None
        return self._definitions[study.study]

    def add_trial(self, asked: AskTrial, parameters: Parameters) -> None:
        """Record how a trial is started, before it is in the journal. May be repeated."""
        definition = self._definitions[asked.study]
        self._launches.add(asked.spec, definition.trial(parameters))


def find(core: Coordinator, name: str) -> Study:
    """The study of this name; :class:`UserError` if there is none."""
    study = core.studies.get(StudyId(name))
    if study is None:
        known = ", ".join(core.studies) or "none"
        raise UserError(f"no study named {name!r}; there are: {known}")
    return study


def status(core: Coordinator, store: StudyStore, study: Study, now_s: float) -> StudyStatus:
    """A study's status; :class:`JournalError` if its definition cannot be read."""
    definition = store.definition(study.spec)
    spec, best = study.spec, study.best()
    left_s = None if spec.deadline_s is None else max(0.0, spec.deadline_s - now_s)
    return StudyStatus(
        study=study.id,
        state="stopped" if study.stopped else "over" if study.over else "running",
        reason=study.stopped,
        metric=spec.metric,
        maximise=spec.maximise,
        rungs=list(spec.rungs),
        sampler=definition.sampler,
        trials=None if study.exhausted else study.total,
        asked=len(study.trials),
        by_state=dict(Counter(_state(core, study, trial) for trial in study.trials)),
        best=_trial(core, study, best, now_s) if best is not None else None,
        deadline_left_s=left_s,
        script=definition.launch.script,
        arguments=definition.launch.arguments,
        directory=str(store.folder(spec)),
        optuna=str(store.journal(spec)),
    )


def trials(core: Coordinator, store: StudyStore, study: Study, now_s: float) -> TrialList:
    """A study and each of its trials."""
    each = [_trial(core, study, trial, now_s) for trial in study.trials]
    return TrialList(study=status(core, store, study, now_s), trials=each)


def _trial(core: Coordinator, study: Study, trial: Trial, now_s: float) -> TrialStatus:
    name = study.spec.trainer(trial.number)
    trainer = core.trainers.get(TrainerId(name))
    used_s = trainer.usage.until(now_s) if trainer is not None else 0.0
    return TrialStatus(
        number=trial.number,
        trainer=name,
        state=_state(core, study, trial),
        phase=trainer.phase if trainer is not None else None,
        nodes=len(trainer.group.members) if trainer is not None and trainer.group is not None else 0,
        parameters=dict(trial.parameters),
        values=[value if math.isfinite(value) else None for value in trial.values],
        rung=trial.rung + 1,
        reports=trial.reports,
        node_hours=hours(used_s, core.config.charge_factor),
        reason=trial.ended or (trainer.shelved if trainer is not None else ""),
    )


def _state(core: Coordinator, study: Study, trial: Trial) -> str:
    """The word for where a trial stands: that of its trainer, unless it has none."""
    if trial.failed:
        return "failed"
    name = study.spec.trainer(trial.number)
    if trial.waits:
        return "waiting"
    trainer = core.trainers.get(name)
    return core.past.get(name, "removed") if trainer is None else trainer.phase
