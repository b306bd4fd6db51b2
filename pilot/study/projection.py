"""A study in Optuna's own file, which optuna-dashboard can open, derived from pilot's journal.

Only one process writes the file, which can be recreated at any time from the coordinator's trials. Optuna gets one
value of a trial, that at the first rung, which every trial reaches: so all values that Optuna compares come from
equally long training, and no trial stays open for long. A failed trial is reported as failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from pilot.core.errors import UserError
from pilot.study.space import COUNTED, make_sampler, space_of, suggest
from pilot.submission.study_definition import Asked, KnownTrial, StudyDefinition


class _NoLock:
    """A lock that always succeeds: the coordinator, which owns the run directory, is the only writer."""

    def acquire(self) -> bool:
        """Succeed at once."""
        return True

    def release(self) -> None:
        """Do nothing."""


class Projection:
    """Optuna's study in ``file``, brought in line with the ``known`` trials."""

    def __init__(self, definition: StudyDefinition, file: Path, known: Sequence[KnownTrial]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._definition = definition
        self._space = space_of(definition)
        try:
            self._study = self._open(file)
            self._agree(known)
        except Exception:  # any error in the file: it is recreated
            file.unlink(missing_ok=True)
            self._study = self._open(file)
            self._agree(known)

    def ask(self, number: int) -> Asked:
        """The parameters of trial ``number``; the same again if they were asked for before. ValueError if
        somebody else wrote to the file."""
        self._study.sampler = make_sampler(self._definition, number)
        trials = self._trials(number + 1)
        if trials[number].state.is_finished():
            raise ValueError(f"trial {number} is over in the file")
        try:
            parameters = suggest(self._study, trials[number]._trial_id, self._space)
        except UserError as error:
            return Asked(error=str(error))
        earlier = [trial.params for trial in trials[:number]]
        if self._definition.sampler in COUNTED and dict(parameters) in earlier:
            self.tell(number, None)
            return Asked(error="every point of the space was tried", exhausted=True)
        return Asked(parameters)

    def tell(self, number: int, value: float | None) -> None:
        """Record the result of trial ``number``; idempotent."""
        trials = self._study.get_trials(deepcopy=False)
        if number >= len(trials) or trials[number].state.is_finished():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if value is None:
                    self._study.tell(number, state=TrialState.FAIL)
                else:
                    self._study.tell(number, value)
            except RuntimeError:  # grid and brute force stop a study, an error outside optimize(); Optuna has the value
                pass

    def _trials(self, count: int) -> list[FrozenTrial]:
        """At least ``count`` trials. Missing ones are added, open and without parameters, to keep the numbers right."""
        while len(trials := self._study.get_trials(deepcopy=False)) < count:
            self._study.ask()
        return trials

    def _open(self, file: Path) -> optuna.Study:
        _cut_off(file)
        storage = JournalStorage(JournalFileBackend(str(file), lock_obj=_NoLock()))  # type: ignore[arg-type]  # it is one
        directions = optuna.study.StudyDirection
        direction = directions.MAXIMIZE if self._definition.maximise else directions.MINIMIZE
        return optuna.create_study(
            storage=storage, study_name=self._definition.name, direction=direction, load_if_exists=True
        )

    def _agree(self, known: Sequence[KnownTrial]) -> None:
        """Make the file agree with the ``known`` trials; ValueError if it contradicts them."""
        trials = self._study.get_trials(deepcopy=False)
        numbers = {trial.number for trial in known}
        if strange := [t.number for t in trials if t.state.is_finished() and t.number not in numbers]:
            raise ValueError(f"trials {strange} were added to the file")
        for trial in known:
            if trial.number < len(trials):
                _check(trials[trial.number], trial)
            else:
                self._add(trial)
            if trial.ended:
                self.tell(trial.number, trial.value)

    def _add(self, known: KnownTrial) -> None:
        """Add a trial that is missing from the file, with the parameters it was given."""
        self._study.sampler = optuna.samplers.RandomSampler(seed=0)
        self._trials(known.number)
        self._study.enqueue_trial(dict(known.parameters))
        suggest(self._study, self._study.ask()._trial_id, self._space)


def _check(found: FrozenTrial, known: KnownTrial) -> None:
    if found.params != dict(known.parameters):
        raise ValueError(f"trial {known.number} has other parameters in the file")
    if found.state.is_finished() and not known.ended:
        raise ValueError(f"trial {known.number} is over in the file")
    if found.state is TrialState.COMPLETE and found.value != known.value:
        raise ValueError(f"trial {known.number} has another value in the file")


def _cut_off(file: Path) -> None:
    """Remove a last line that was cut short by a kill."""
    if file.exists():
        data = file.read_bytes()
        if data and not data.endswith(b"\n"):
            file.write_bytes(data[: data.rfind(b"\n") + 1])


FEWEST = 4
"""The fewest trials for an importance."""


def importance(file: Path, study: str) -> dict[str, float]:
    """The importance of each parameter of ``study`` in Optuna's journal ``file``, by functional ANOVA of the values at
    the first rung; {} if too little is known."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        loaded = optuna.load_study(study_name=study, storage=JournalStorage(JournalFileBackend(str(file))))
        if len(loaded.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE])) < FEWEST:
            return {}
        return dict(optuna.importance.get_param_importances(loaded))
    except (OSError, KeyError, ValueError, RuntimeError, ImportError):
        return {}
