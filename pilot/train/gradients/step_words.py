"""The head of the control vector: numbers that the ranks of a group sum with every step."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

FIELDS = 11


@dataclass(frozen=True, slots=True)
class Words:
    """One rank's words, or the sums over all ranks.

    ``ready`` is the generation that a rank is ready for, ``squares`` its square (see
    :func:`~pilot.train.node.membership.agreed`), ``pause`` 1 if it was asked to pause, ``loss`` its part of the mean
    loss over the step, ``save`` 1 if a checkpoint could begin after this step, ``saved`` 1 if its part of the current
    one is written (see :mod:`pilot.train.ranks.periodic`), ``checksum`` that of its state (0: not compared in this
    step), ``checksum_squares`` its square (see :mod:`pilot.train.steps.alarm`), ``weight`` that of its gradients if the
    script gives one (see :mod:`pilot.train.steps.weights`), ``stop`` 1 if its script wants no step after this one,
    ``samples`` the number of its samples that count. ``times``, which follow the head's numbers, have a place for each
    rank: the time that it computed for the step before (see :mod:`pilot.train.state.shares`).
    """

    ready: float
    squares: float
    pause: float
    loss: float
    save: float
    saved: float
    checksum: float = 0.0
    checksum_squares: float = 0.0
    weight: float = 0.0
    stop: float = 0.0
    samples: float = 0.0
    times: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0), compare=False)

    @classmethod
    def of(cls, ready: int, pause: bool, loss: float, *, save: bool = False, saved: bool = False) -> Words:
        """Return the words of one rank."""
        return cls(ready, ready * ready, pause, loss, save, saved)

    @classmethod
    def read(cls, vector: NDArray[np.float64], times: NDArray[np.float64]) -> Words:
        """Return the words in ``vector``, shape (FIELDS,), and a copy of ``times``."""
        return replace(cls(*vector.tolist()), times=times.copy())

    def write(self, vector: NDArray[np.float64]) -> None:
        """Write the words into ``vector``, shape (FIELDS,)."""
        vector[:] = _values(self)


_values = attrgetter(*[one.name for one in fields(Words)][:FIELDS])
