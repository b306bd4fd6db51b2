"""Removes what is obsolete after a checkpoint was published: older ones, orphaned parts, files of dead writers."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from pilot.checkpoint import names
from pilot.checkpoint.names import Age, Temporary

_FOREIGN_IDLE_S = 600.0
"""A temporary file of another host, whose writer is invisible here, is dead if nothing was written for this long."""


def keep(directory: Path, newest: Age, kept: int, agreed_step: int | None = None) -> None:
    """Keep ``newest``, which was just published, and the ``kept`` - 1 before it. Newer ones are left alone.

    The newest one up to ``agreed_step`` is always kept: the ranks do not know yet that later ones hold the same state
    on all of them.  An index is removed before its parts, so a listed checkpoint never lacks a part.
    """
    older = [entry for entry in names.checkpoints(directory) if entry.age < newest]
    agreed = [newest, *(entry.age for entry in older)] if agreed_step is not None else []
    spared = next((age for age in agreed if age.step <= (agreed_step or 0)), None)
    for entry in older[kept - 1 :]:
        if entry.age != spared:
            _remove(entry.path)
    living = {entry.age for entry in names.checkpoints(directory)}
    for one in [*names.parts(directory), *names.next_steps(directory)]:
        if one.age < newest and one.age not in living:
            _remove(one.path)


def sweep(directory: Path, now_s: float) -> None:
    """Remove the temporary files of dead writers. ``now_s`` is the file system's time, not this host's."""
    for temporary in names.temporaries(directory):
        with suppress(OSError):
            if _is_dead(temporary, now_s):
                temporary.path.unlink()


def _is_dead(temporary: Temporary, now_s: float) -> bool:
    if temporary.host == socket.gethostname():
        return names.started_ticks(temporary.pid) != temporary.started
    return now_s - temporary.path.stat().st_mtime > _FOREIGN_IDLE_S


def _remove(path: Path) -> None:
    with suppress(OSError):  # a later checkpoint tries again; publishing must not fail because of old files
        path.unlink()
