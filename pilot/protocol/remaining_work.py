"""How much work a trainer has left, from what its session reports beside the script's own metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EPOCH_SAMPLES = "epoch_samples"
EPOCHS = "epochs"
ITERATIONS = "iterations"

BY_SESSION = frozenset({EPOCH_SAMPLES, EPOCHS, ITERATIONS})
"""Names that come with a trainer's metrics but are not metrics: the samples of an epoch, the length of its loop."""


def has_session(metrics: Mapping[str, float]) -> bool:
    """Whether a session reported ``metrics``. Of a torchrun script only steps are known; each counts as one sample per
    process."""
    return not BY_SESSION.isdisjoint(metrics)


MOST = 2.0**53
"""Larger values are not counts: floats are no longer exact there."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a trainer's loop ends; None: not known."""

    epochs: int | None  #: how many in total
    iterations: int | None  #: how many steps in total, of a loop over iterations
    epoch_samples: int | None  #: the samples of an epoch

    @classmethod
    def of(cls, metrics: Mapping[str, float]) -> Goal:
        """The goal that ``metrics`` describe."""
        return cls(_count(metrics, EPOCHS), _count(metrics, ITERATIONS), _count(metrics, EPOCH_SAMPLES))

    def left_s(self, epoch: int, step: int, samples: int, samples_per_s: float | None) -> float | None:
        """Seconds to the end at this rate, from where the trainer is; None if unknown.

        The first epoch of a stream has no known length, nor has a loop before its first step.
        """
        total = self.total_samples(epoch, step, samples)
        return None if total is None or not samples_per_s else max(0.0, total - samples) / samples_per_s

    def total_samples(self, epoch: int, step: int, samples: int) -> float | None:
        """How many samples the loop has in total; None if unknown."""
        if self.iterations is not None:
            return self.iterations * samples / step if step else None
        in_one = self.epoch_samples or (samples / epoch if epoch else None)
        return None if self.epochs is None or in_one is None else float(self.epochs * in_one)


def _count(metrics: Mapping[str, float], name: str) -> int | None:
    value = metrics.get(name)
    return int(value) if value is not None and 0 < value <= MOST else None
