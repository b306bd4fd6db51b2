"""Tells of numbers with which the script begins an epoch, and which each batch changes and uses for its loss: a
temperature that is lowered, a count of batches that weights a term. A process that joins in the middle of the epoch
runs its beginning, too.

Most numbers that batches change are sums for a report, so only those are told of from which the loss is computed. (What
the script has from before the session's loop is told of by :mod:`pilot.train.own_values`.)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import FrameType

import numpy as np
import torch

from pilot.train import loop_code, refusal

_NUMBERS = (int, float, np.number, np.ndarray, torch.Tensor)
_KEPT = {"steps", "state"}
"""What begins with one of these attributes of the session goes on where it was."""


class EpochNumbers:
    """Looks for one session."""

    def __init__(self) -> None:
        self._told = False

    def look(self, frames: Sequence[FrameType], head: int, known: Collection[str]) -> None:
        """Tell, once.

        Parameters
        ----------
        frames : the running functions, from the one with the session's loop over epochs on
        head : where that loop begins
        known : names of what it was told of already
        """
        loop = None if self._told else loop_code.inner_loop(frames, head)
        if loop is None:
            return
        frame, begin = loop
        code = frame.f_code
        used = loop_code.behind_loss(code, begin, None if frame is frames[-1] else frame.f_lasti)
        names = [
            name
            for name, value in loop_code.handed_on(frame, begin)
            if name in used
            and name not in known
            and isinstance(value, _NUMBERS)
            and not loop_code.begins_with(code, begin, name) & _KEPT
        ]
        if names:
            self._told = True
            refusal.note(
                "the script's loss depends on what each batch leaves to the next one, beginning with a value of the"
                f" epoch's ({', '.join(names)}); a node that joins, or a run that resumes, in the middle of an epoch"
                " begins with that value: compute it from session.steps, or from the number that enumerate(loader)"
                " gives, or keep it in session.state"
            )
