"""Which compositions there are, and such that together have any two choices."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from tests.equivalence.composed.data import BATCHES, DATASETS, NOISE
from tests.equivalence.composed.models import MODELS
from tests.equivalence.composed.optimizers import OPTIMIZERS, SCHEDULERS

Composition = Mapping[str, str]
Apart = tuple[str, ...]

AXES: dict[str, Apart] = {
    "model": tuple(MODELS),
    "optimizer": tuple(OPTIMIZERS),
    "schedule": tuple(SCHEDULERS),
    "noise": tuple(NOISE),
    "data": tuple(DATASETS),
    "batches": tuple(BATCHES),
    "loop": ("epochs", "enumerate", "iterations", "next"),
    "gradients": ("as they are", "clipped", "summed and clipped", "summed and scaled", "decayed"),
    "weight": ("none", "of samples"),
    "trained": ("all", "unfrozen", "in turns", "a group added", "frozen from the start"),
    "other": ("nothing", "average", "teacher", "distance to the start"),
    "state": ("empty", "counts", "tensors", "lists", "restored"),
    "evaluated": ("never", "after the epoch", "before the epoch", "between steps"),
    "by hand": ("nothing", "rate by steps", "rate of an epoch", "momenta forgotten", "clamped", "reset", "noisy"),
}

APART: list[tuple[str, Apart, str, Apart]] = [
    # documented to depend on the number of ranks or batches, or to be refused
    ("batches", ("micro 1", "micro 3"), "model", ("spectral norm", "counting")),
    ("batches", ("micro 1", "micro 3"), "loop", ("next", "enumerate")),
    ("batches", ("micro 1", "micro 3"), "gradients", ("decayed",)),
    ("batches", ("micro 1", "micro 3", "by hand", "of one"), "optimizer", ("by names",)),
    ("batches", ("by hand", "of one"), "weight", ("of samples",)),
    ("optimizer", ("by names",), "weight", ("of samples",)),
    ("loop", ("iterations", "next"), "schedule", ("plateau",)),
    ("loop", ("iterations", "next"), "trained", ("unfrozen", "in turns", "a group added")),
    ("loop", ("iterations", "next"), "evaluated", ("after the epoch", "before the epoch")),
    ("loop", ("iterations", "next"), "by hand", ("rate of an epoch", "momenta forgotten", "reset", "noisy")),
    ("data", ("tensors",), "noise", ("torch", "numpy", "python", "all")),
    # torch's schedulers do not know of a group added later
    ("trained", ("a group added",), "schedule", ("by step", "by epoch", "one cycle", "tracked", "plateau")),
    ("optimizer", ("adagrad",), "schedule", ("one cycle",)),
    # a rate by hand is the scheduler's, or the script's
    ("by hand", ("rate by steps",), "schedule", ("one cycle",)),
]


def together(choices: Composition) -> bool:
    """Whether these choices, of some of the axes, go together."""
    return not any(choices.get(a) in of_a and choices.get(b) in of_b for a, of_a, b, of_b in APART)


def covering(seed: int) -> list[dict[str, str]]:
    """Compositions, drawn greedily, in which any two choices that go together occur together."""
    drawn = random.Random(seed)
    singles = [(axis, choice) for axis, choices in AXES.items() for choice in choices]
    both = [(a, b) for a, b in itertools.combinations(singles, 2) if a[0] != b[0] and together(dict([a, b]))]
    missing = dict.fromkeys(map(frozenset, both))  # a set in a fixed order
    found = []
    while missing:
        one = dict(drawn.choice([*missing]))
        for axis in drawn.sample([*AXES], len(AXES)):
            if axis not in one:
                fit = [
                    choice for choice in drawn.sample(AXES[axis], len(AXES[axis])) if together({**one, axis: choice})
                ]
                one[axis] = max(fit, key=lambda c: sum(frozenset([(axis, c), o]) in missing for o in one.items()))
        found.append(one)
        for pair in itertools.combinations(one.items(), 2):
            missing.pop(frozenset(pair), None)
    return found
