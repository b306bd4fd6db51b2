"""Which compositions there are, and such that together have any two choices."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping

from tests.equivalence.composed.choices import MODELS, OPTIMIZERS, OTHERS, SCHEDULERS
from tests.equivalence.composed.data import BATCHES, DATASETS, NOISE

Composition = Mapping[str, str]
Choices = tuple[str, ...]

AXES: dict[str, Choices] = {
    "model": tuple(MODELS),
    "optimizer": tuple(OPTIMIZERS),
    "schedule": tuple(SCHEDULERS),
    "scaler": ("none", "grows", "overflows"),
    "noise": tuple(NOISE),
    "data": tuple(DATASETS),
    "batches": tuple(BATCHES),
    "loop": ("epochs", "enumerate", "iterations", "next"),
    "end": ("all", "stopped", "left after an epoch", "left in an epoch"),
    "gradients": (
        *("as they are", "clipped", "summed and clipped", "summed and scaled", "summed and noisy"),
        *("decayed", "penalty", "by hand"),
    ),
    "zeroed": ("before", "to zero", "after the step"),
    "weight": ("none", "of samples"),
    "trained": ("all", "unfrozen", "in turns", "a group added", "groups added", "frozen from the start"),
    "other": tuple(OTHERS),
    "state": ("empty", "of epochs", "tensors", "lists", "drawn", "restored"),
    "evaluated": (
        *("never", "after the epoch", "twice after the epoch", "before the epoch", "between steps"),
        "halves before the epoch, between steps",
    ),
    "by hand": (
        *("nothing", "rate by steps", "rate by number", "rate of an epoch", "momenta forgotten", "momenta scaled"),
        *("clamped", "reset", "loaded", "noisy"),
    ),
}

NAMED, BY_NAMES = ("by names", "by names, in turns", "parts by name"), ("by names", "by names, in turns")
MICRO = ("micro 1", "micro 3", "all at once")
TURNS, COUNTING = ("iterations", "next"), ("spectral norm", "counting", "remembering")
AT_EPOCHS = ("after the epoch", "twice after the epoch", "before the epoch")
ADDED = ("a group added", "groups added")

EXCLUDED: list[tuple[str, Choices, str, Choices]] = [
    # documented to depend on the number of ranks or batches, or to be refused
    ("batches", MICRO, "model", COUNTING),
    ("batches", MICRO, "loop", ("next", "enumerate")),
    ("batches", MICRO, "gradients", ("decayed",)),
    ("batches", MICRO, "by hand", ("rate by number",)),
    ("batches", MICRO, "optimizer", NAMED),
    ("optimizer", NAMED, "weight", ("of samples",)),
    ("loop", TURNS, "schedule", ("plateau",)),
    ("loop", TURNS, "trained", ("unfrozen", "in turns", *ADDED)),
    ("loop", TURNS, "evaluated", (*AT_EPOCHS, "halves before the epoch, between steps")),
    ("loop", TURNS, "by hand", ("rate of an epoch", "momenta forgotten", "reset", "loaded", "noisy")),
    ("loop", ("epochs", *TURNS), "by hand", ("rate by number",)),
    ("loop", TURNS, "end", ("left after an epoch",)),
    ("loop", TURNS, "state", ("of epochs",)),
    ("loop", TURNS, "data", ("changed",)),
    ("loop", TURNS, "model", ("exemplars",)),
    ("loop", TURNS, "other", ("average of epochs", "anchor")),
    ("data", ("tensors",), "noise", ("torch", "numpy", "python", "all")),
    ("data", ("stream of a loader",), "noise", ("torch", "numpy", "python", "all")),
    # a plain loop that is left does not step them; the session's has, for a rank that ends because others have left
    ("end", ("left after an epoch", "left in an epoch"), "schedule", ("by epoch", "plateau")),
    # torch's schedulers do not know of a group added later
    ("trained", ADDED, "schedule", tuple(one for one in SCHEDULERS if one != "none")),
    ("optimizer", ("own",), "schedule", ("one cycle",)),
    # a rate by hand is the scheduler's, or the script's
    ("by hand", ("rate by steps", "rate by number"), "schedule", ("one cycle",)),
    # what a step changes is seen in the process's first one, in which this model has no turn
    ("optimizer", ("by names, in turns",), "gradients", ("decayed",)),
    # torch's scaler refuses an optimizer without gradients
    ("model", ("unused layer", "experts"), "optimizer", ("list", "parts by name")),
    # torch copies buffers only between those of the same shape
    ("model", ("exemplars",), "other", ("average", "teacher", "average of epochs", "target", "anchor")),
    ("gradients", ("by hand",), "scaler", ("grows", "overflows")),
    ("zeroed", ("after the step",), "optimizer", BY_NAMES),
    # refused: torch would step with a gradient that was zeroed in place and that no backward reached
    ("zeroed", ("to zero",), "model", ("unused layer", "experts")),
    ("zeroed", ("to zero",), "trained", ("in turns",)),
]


def together(choices: Composition) -> bool:
    """Whether these choices, of some of the axes, go together."""
    return not any(choices.get(a) in of_a and choices.get(b) in of_b for a, of_a, b, of_b in EXCLUDED)


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
