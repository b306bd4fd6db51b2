"""The definitions of submitted studies; the core knows everything else about them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pilot.core.commands import AskTrial
from pilot.core.errors import JournalError, PilotError
from pilot.core.ids import StudyId
from pilot.core.study import Parameters, StudySpec
from pilot.io import own_folder, trainer_folder
from pilot.io.files import publish
from pilot.io.rundir import RunDir
from pilot.io.study_definition import StudyDefinition
from pilot.service.launch_store import LaunchStore


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
            own_folder.make(self.folder(study))
            publish(self.folder(study) / "study.json", msgspec.json.encode(definition) + b"\n")
        except OSError as error:
            raise PilotError(f"cannot record the study {study.study}: {error.strerror}", transient=True) from None
        self._definitions[study.study] = definition

    def definition(self, study: StudySpec) -> StudyDefinition:
        """As submitted, read from disk after a restart; :class:`JournalError` if that is unreadable."""
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
