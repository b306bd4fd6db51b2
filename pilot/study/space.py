"""The space of a study: what one trial's parameters are, suggested by an Optuna trial."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optuna

from pilot.core.errors import UserError
from pilot.core.study import Parameters
from pilot.io.study_definition import Range, StudyDefinition, check_name

Space = Callable[[optuna.Trial], object]


class _Once(optuna.Trial):
    """Refuses a name that was suggested before: Optuna would return the first value again."""

    def __init__(self, study: optuna.Study, trial_id: int) -> None:
        super().__init__(study, trial_id)
        self.names: dict[str, None] = {}

    def suggest_float(self, name: str, *args: Any, **kwargs: Any) -> float:
        """Of Optuna."""
        return super().suggest_float(self._new(name), *args, **kwargs)

    def suggest_int(self, name: str, *args: Any, **kwargs: Any) -> int:
        """Of Optuna."""
        return super().suggest_int(self._new(name), *args, **kwargs)

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """Of Optuna."""
        return super().suggest_categorical(self._new(name), choices)

    def _new(self, name: str) -> str:
        if name in self.names:
            raise UserError(f"the search space suggests the parameter {name} twice")
        self.names[check_name(name)] = None
        return name


def space_of(definition: StudyDefinition) -> Space:
    """The function that suggests the parameters of ``definition``; :class:`UserError` if its file has none."""
    if not definition.space:
        return lambda trial: [_suggest(trial, name, range_) for name, range_ in definition.parameters.items()]
    found: dict[str, Any] = {"__name__": "space"}
    try:
        exec(compile(definition.space, "space.py", "exec"), found)  # the user's own file, as documented
    except Exception as error:  # whatever a user's file raises
        raise UserError(f"the --space file fails: {type(error).__name__}: {error}") from None
    function = found.get("space")
    if not callable(function):
        raise UserError("the --space file has no function space(trial)")
    space: Space = function
    return space


def suggest(study: optuna.Study, trial_id: int, space: Space) -> Parameters:
    """The parameters of one trial; those that it has already are kept. :class:`UserError` if the space is invalid."""
    trial = _Once(study, trial_id)
    try:
        space(trial)
    except UserError:
        raise
    except Exception as error:  # whatever a user's function raises
        raise UserError(f"space(trial) fails: {type(error).__name__}: {error}") from None
    values = trial.params
    if not values:
        raise UserError("the search space is empty: it suggests no parameter")
    for name, value in values.items():
        if not isinstance(value, str | int | float | bool):
            raise UserError(f"the parameter {name} is {value!r}; use strings and numbers, which become arguments")
    return tuple((name, values[name]) for name in trial.names)


def check(definition: StudyDefinition) -> None:
    """Try the search space and the sampler once; :class:`UserError` says what is wrong."""
    from pilot.study.samplers import make_sampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    make_sampler(definition, 0)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=definition.seed))
    suggest(study, study.ask()._trial_id, space_of(definition))


def _suggest(trial: optuna.Trial, name: str, range_: Range) -> object:
    match range_.kind:
        case "choice":
            return trial.suggest_categorical(name, range_.choices)
        case "int":
            return trial.suggest_int(name, int(range_.low), int(range_.high), step=int(range_.step) or 1)
        case "log":
            return trial.suggest_float(name, range_.low, range_.high, log=True)
        case _:
            return trial.suggest_float(name, range_.low, range_.high, step=range_.step or None)
