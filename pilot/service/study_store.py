"""What users submitted as studies: how each is defined, beside what the core knows of it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pilot.core.commands import AskTrial
from pilot.core.errors import JournalError, PilotError
from pilot.core.ids import StudyId
from pilot.core.study import Parameters, StudySpec
from pilot.io import trainer_folder
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
        """Its own."""
        return self._root / trainer_folder.name(study.template.trainer, study.template.uid)

    def journal(self, study: StudySpec) -> Path:
        """Optuna's file, which optuna-dashboard opens."""
        return self.folder(study) / "optuna.journal"

    def add(self, study: StudySpec, definition: StudyDefinition) -> None:
        """Record a study, before the journal tells of it; :class:`PilotError` where the disk does not take it."""
        try:
            self.folder(study).mkdir(mode=0o700, parents=True, exist_ok=True)
            publish(self.folder(study) / "study.json", msgspec.json.encode(definition) + b"\n")
        except OSError as error:
            raise PilotError(f"cannot record the study {study.study}: {error.strerror}", transient=True) from None
        self._definitions[study.study] = definition

    def definition(self, study: StudySpec) -> StudyDefinition:
        """As it was submitted, read back after a restart; :class:`JournalError` where that cannot be read."""
        if study.study not in self._definitions:
            path = self.folder(study) / "study.json"
            try:
                self._definitions[study.study] = msgspec.json.decode(path.read_bytes(), type=StudyDefinition)
            except (OSError, msgspec.DecodeError, PilotError) as error:
                raise JournalError(f"cannot read the study {study.study} from {path}: {error}") from None
        return self._definitions[study.study]

    def add_trial(self, asked: AskTrial, parameters: Parameters) -> None:
        """Record how a trial is started, before the journal tells of it; again where that was done before."""
        definition = self._definitions[asked.study]
        self._launches.add(asked.spec, definition.trial(parameters))
