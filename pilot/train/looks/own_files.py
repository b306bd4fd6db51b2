"""Tells of files that a script reads in its loop and that were written since the loop began: weights of the best epoch,
or the last epoch's predictions. A node that joins may have no such file, and a run that resumes has that of a later
step.
"""

from __future__ import annotations

import re
import stat
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path, PurePath
from types import FrameType

from pilot.train.script import loop_code, refusal
from pilot.train.script.statements import Statement
from pilot.train.script.step_uses import within_loop

_READS = {
    *("load", "load_file", "loadtxt", "genfromtxt", "fromfile", "memmap", "open", "safe_open", "read_text"),
    *("read_bytes", "read_csv", "read_json", "read_parquet", "read_pickle", "from_pretrained"),
}
"""Names of functions and methods."""
_WRITES = re.compile(r"[wax]\+?[bt]?\+?")
"""How a file is opened otherwise."""
_Name = str | PurePath


class OwnFiles:
    """Looks for one session."""

    def __init__(self) -> None:
        self._begun_s = 0.0
        self._told = False

    def begin(self) -> None:
        """The loop begins."""
        self._begun_s = time.time()

    def look(self, frames: Sequence[FrameType], head: int) -> None:
        """Tell once. ``frames``: the functions, the first of which has the session's loop, which begins at ``head``."""
        for frame in () if self._told else frames:
            within = within_loop(frame, head if frame is frames[0] else None)
            for one in loop_code.statements_between(frame.f_code, *within):
                if file := next((file for file in _read_by(one, frame) if self._is_new(file)), None):
                    self._tell(file)
                    return

    def _is_new(self, file: PurePath) -> bool:
        try:
            found = Path(file).stat()
        except (OSError, ValueError):
            return False
        return stat.S_ISREG(found.st_mode) and found.st_mtime >= self._begun_s

    def _tell(self, file: PurePath) -> None:
        self._told = True
        refusal.note(
            f"the script reads a file in its loop that was written since the loop began ({file}): a node that joins may"
            " not have it, and a run that resumes has that of a later step: keep what training depends on in"
            " session.state, or in what session.track has"
        )


def _read_by(one: Statement, frame: FrameType) -> Iterator[PurePath]:
    """The names of files that it may read: those in variables or in its text, and such in a folder of these."""
    if _READS.isdisjoint(one.attributes | one.reads) or any(map(_WRITES.fullmatch, one.texts)):
        return
    values = [loop_code.value_of(frame, *path.split(".")) for path in one.reads]
    names = [*(value for value in values if isinstance(value, _Name)), *one.texts]
    yield from map(PurePath, names)
    for first, second in product(names, one.texts):
        yield from (PurePath(f"{first}{second}"), PurePath(first) / second)
