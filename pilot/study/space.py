"""The search space of a study: one trial's parameters, suggested by an Optuna trial."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from pilot.core.errors import UserError
from pilot.core.study.study import TRIALS_MAX, Parameters
from pilot.submission.study_definition import Range, Sampler, StudyDefinition, check_choices, check_name

Space = Callable[[optuna.Trial], object]

DRAWS = 50
"""How often a search space is tried before it is submitted: with conditions, it may fail in only some branches."""

DRAWS_S = 2.0
"""No more draws after this time."""


class _Once(optuna.Trial):
    """Refuses a name that was suggested before: Optuna would return the first value again."""

    def __init__(self, study: optuna.Study, trial_id: int) -> None:
        super().__init__(study, trial_id)
        self.names: dict[str, None] = {}

    def suggest_float(self, name: str, *args: Any, **kwargs: Any) -> float:
        """See Optuna."""
        return super().suggest_float(self._new(name), *args, **kwargs)

    def suggest_int(self, name: str, *args: Any, **kwargs: Any) -> int:
        """See Optuna."""
        return super().suggest_int(self._new(name), *args, **kwargs)

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        """See Optuna; NumPy scalars become Python's."""
        plain = [choice.item() if hasattr(choice, "item") else choice for choice in choices]
        _check_values(self._new(name), plain)
        return super().suggest_categorical(name, plain)

    def _new(self, name: str) -> str:
        if name in self.names:
            raise UserError(f"the search space suggests the parameter {name} twice")
        self.names[check_name(name)] = None
        return name


def space_of(definition: StudyDefinition) -> Space:
    """The function that suggests the parameters of ``definition``; :class:`UserError` if its file has none."""
    if not definition.space:
        return lambda trial: [_suggest(trial, name, range_) for name, range_ in definition.parameters.items()]
    module = ModuleType("space")
    sys.modules["space"] = module  # dataclasses and enumerations look up their module
    try:
        exec(compile(definition.space, "space.py", "exec"), vars(module))  # the user's own file, as documented
    except (Exception, SystemExit) as error:  # any error of a user's file
        raise UserError(f"the --space file fails: {_in_a_line(error)}") from None
    function = vars(module).get("space")
    if not callable(function):
        raise UserError("the --space file has no function space(trial)")
    space: Space = function
    return space


def suggest(study: optuna.Study, trial_id: int, space: Space) -> Parameters:
    """The parameters of one trial; those that it already has stay. :class:`UserError` if the space is invalid."""
    trial = _Once(study, trial_id)
    try:
        space(trial)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # any error of a user's function
        raise UserError(f"space(trial) fails: {_in_a_line(error)}") from None
    values = trial.params
    if not values:
        raise UserError("the search space is empty: it suggests no parameter")
    for name, value in values.items():
        _check_values(name, [value])
    return tuple((name, values[name]) for name in trial.names)


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _check_values(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if type(value) not in (str, int, float, bool):
            raise UserError(f"the parameter {name} is {value!r}; use strings and numbers, which become arguments")
    check_choices(name, values)


def check(definition: StudyDefinition) -> None:
    """Try the search space on :data:`DRAWS` trials, and the sampler; :class:`UserError` if they fail."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler, by_s = make_sampler(definition, 0), time.monotonic() + DRAWS_S
    counted = definition.sampler in COUNTED  # these refuse ranges that cannot be counted
    study = optuna.create_study(sampler=sampler if counted else optuna.samplers.RandomSampler(seed=definition.seed))
    with contextlib.redirect_stdout(io.StringIO()):  # a space may print
        space = space_of(definition)
        for _ in range(1 if counted else DRAWS):
            suggest(study, study.ask()._trial_id, space)
            if time.monotonic() > by_s:
                break


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


NEEDS = {Sampler.GP: ("torch", "scipy"), Sampler.CMAES: ("cmaes",), Sampler.QMC: ("scipy",)}
"""The packages that a sampler needs besides Optuna."""

COUNTED = (Sampler.GRID, Sampler.BRUTE)
"""Samplers that try each point of the space once."""


class _Qmc(optuna.samplers.QMCSampler):
    """Takes the point of the sequence at the trial's number, so it needs no state of its own."""

    number = 0

    def _find_sample_id(self, *_: Any) -> int:
        return self.number


def make_sampler(definition: StudyDefinition, number: int) -> BaseSampler:
    """The sampler that chooses the parameters of trial ``number``: each has a new one, seeded with (seed, number),
    so that no draws are repeated.
    """
    sampler, seed = definition.sampler, (definition.seed * 1_000_003 + number) % 2**32
    missing = [name for name in NEEDS.get(sampler, ()) if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"the sampler {sampler} needs {' and '.join(missing)}: pip install 'pilot-train[study]'")
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    match sampler:
        case Sampler.TPE:
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        case Sampler.RANDOM:
            return optuna.samplers.RandomSampler(seed=seed)
        case Sampler.QMC:
            qmc = _Qmc(seed=definition.seed, warn_asynchronous_seeding=False, warn_independent_sampling=False)
            qmc.number = number
            return qmc
        case Sampler.GP:
            return optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False)
        case Sampler.CMAES:
            return optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False)
        case Sampler.BRUTE:
            _countable(definition)
            return optuna.samplers.BruteForceSampler(seed=seed)
        case Sampler.GRID:
            return optuna.samplers.GridSampler(_grid(definition), seed=definition.seed)


def _grid(definition: StudyDefinition) -> dict[str, tuple[Any, ...]]:
    if not definition.parameters:
        raise UserError("the sampler grid needs --param; with --space use brute-force")
    values = _countable(definition)
    if (points := math.prod(map(len, values.values()))) > TRIALS_MAX:
        raise UserError(f"the grid has {points:,} points, and a study has at most {TRIALS_MAX:,} trials")
    return values


def _countable(definition: StudyDefinition) -> dict[str, tuple[Any, ...]]:
    """The values of each parameter, which Optuna will all list."""
    values = {name: range_.values() for name, range_ in definition.parameters.items()}
    for name, found in values.items():
        if not found:
            raise UserError(
                f"the sampler {definition.sampler} cannot count the values of {name}: give choice:, int:, or float: "
                f"with a step, and at most {TRIALS_MAX:,} values"
            )
    return values
