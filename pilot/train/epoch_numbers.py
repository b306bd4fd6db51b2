"""Tells of numbers with which the script begins an epoch, and which each batch changes and uses for its loss: a
temperature that is lowered, a count of batches that weights a term. A process that joins in the middle of the epoch
runs its beginning, too.

Most numbers that batches change are sums for a report, so only those are told of from which the loss is computed. (What
the script has from before the session's loop is told of by :mod:`pilot.train.own_values`.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
        self._seen: dict[str, str] = {}

    def look(self, frames: Sequence[FrameType], head: int, known: Collection[str]) -> None:
        """Tell, once, of those that are others than when it looked before.

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
        now = dict(_candidates(frame, head if frame is frames[0] else 0, begin, frame is frames[-1]))
        names = [name for name, value in now.items() if name not in known and self._seen.get(name, value) != value]
        self._seen |= now
        if names:
            self._told = True
            refusal.note(
                "the script's loss depends on what each batch leaves to the next one, beginning with a value of the"
                f" epoch's ({', '.join(names)}); a node that joins, or a run that resumes, in the middle of an epoch"
                " begins with that value: compute it from session.steps, or from the number that enumerate(loader)"
                " gives, or keep it in session.state"
            )


def _candidates(frame: FrameType, start: int, begin: int, is_last: bool) -> Iterator[tuple[str, str]]:
    """Variables that are set between ``start`` and the loop that begins at ``begin``, and their values as texts."""
    code = frame.f_code
    used = loop_code.behind_loss(code, begin, None if is_last else frame.f_lasti)
    for name, value in loop_code.handed_on(frame, begin):
        if name in used and "." not in name and isinstance(value, _NUMBERS):
            read = loop_code.read_to_set(code, start, begin, name)
            if read is not None and not read & _KEPT:
                yield name, repr(value)
