"""Optuna's samplers by name. Each trial gets a new one, seeded with (seed, number), so that no draws are repeated."""

from __future__ import annotations

import importlib.util
import math
import warnings
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from pilot.core.errors import UserError
from pilot.core.study import TRIALS_MAX
from pilot.io.study_definition import Sampler, StudyDefinition

NEEDS = {Sampler.GP: ("torch", "scipy"), Sampler.CMAES: ("cmaes",), Sampler.QMC: ("scipy",)}
"""What a sampler needs besides Optuna."""

COUNTED = (Sampler.GRID, Sampler.BRUTE)
"""Samplers that try each point of the space once."""


class _Qmc(optuna.samplers.QMCSampler):
    """Takes the point of the sequence at the trial's number, so it needs no state of its own."""

    number = 0

    def _find_sample_id(self, *_: Any) -> int:
        return self.number


def make_sampler(definition: StudyDefinition, number: int) -> BaseSampler:
    """The sampler that chooses the parameters of trial ``number``."""
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
