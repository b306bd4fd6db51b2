"""Recording a trace from a live scheduler, one poll at a time (FreeTrain §2.1)."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import IO

from pilot.core.errors import PilotError, UserError
from pilot.core.ids import NodeId, natural_key
from pilot.io.output import reached
from pilot.traces.changes import HEADER, Change, format_change, stream_changes
from pilot.traces.text_files import read_lines

_ORIGIN = re.compile(r"# time_s 0 is (\S+)")


class Recorder:
    """Turns polls into changes, one poll late.

    A node counts as idle only if two polls in a row saw it idle: one seen only once is between one job's end and the
    next one's start.
    """

    def __init__(self, pool: Collection[NodeId] = ()) -> None:
        self.pool: set[NodeId] = set(pool)
        self._last: tuple[float, frozenset[NodeId]] | None = None

    def poll(self, time_s: float, idle: Collection[NodeId]) -> Change | None:
        """Take the nodes that are idle at ``time_s``; return the change at the previous poll, if there was one."""
        previous, self._last = self._last, (time_s, frozenset(idle))
        if previous is None:
            return None
        at_s, seen = previous
        joined = sorted((seen & self._last[1]) - self.pool, key=natural_key)
        left = sorted(self.pool - seen, key=natural_key)
        self.pool.update(joined)
        self.pool.difference_update(left)
        return Change(at_s, tuple(joined), tuple(left)) if joined or left else None


def record(
    path: Path,
    query: Callable[[], set[NodeId]],
    interval_s: float,
    stop: Event,
    *,
    warn: Callable[[str], None],
    clock: Callable[[], float] = time.time,
) -> int:
    """Poll until ``stop`` is set, appending to the trace at ``path`` (created if missing). Returns how many changes.

    A poll that fails is skipped and reported to ``warn``; a permanent failure (no such command) is raised.
    """
    query()
    origin_s, last_s, pool = resume(path) if path.exists() else (_begin(path, clock()), -1.0, set())
    recorder, written = Recorder(pool), 0
    with _append(path) as stream:
        while not stop.is_set():
            last_s = max(math.floor(clock() - origin_s), last_s + 1)
            change = _poll(recorder, query, last_s, warn)
            if change is not None:
                stream.write(format_change(change))
                stream.flush()
                written += 1
            stop.wait(interval_s)
    return written


def resume(path: Path) -> tuple[float, float, set[NodeId]]:
    """The Unix time of a recorded trace's second 0, the time of its last change, and the pool after it."""
    match = _ORIGIN.match(next(read_lines(path), ""))
    if match is None:
        raise UserError(f"{path}:1: not a recorded trace (no '# time_s 0 is ...'); give another file to record to")
    last_s, pool = -1.0, set[NodeId]()
    if sum(1 for _ in read_lines(path)) > len(("origin", "header")):
        for change in stream_changes(path):
            pool.difference_update(change.left)
            pool.update(change.joined)
            last_s = change.time_s
    return datetime.fromisoformat(match[1]).timestamp(), last_s, pool


def _begin(path: Path, now_s: float) -> float:
    origin = datetime.fromtimestamp(math.floor(now_s), UTC)
    with _append(path) as stream:
        stream.write(f"# time_s 0 is {origin.isoformat()}\n{','.join(HEADER)}\n")
    return origin.timestamp()


def _append(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        raise UserError(f"{path}: traces are recorded as plain text; compress the file when it is complete")
    try:
        with reached(path) as place:
            descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            return os.fdopen(descriptor, "a", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None


def _poll(
    recorder: Recorder, query: Callable[[], set[NodeId]], time_s: float, warn: Callable[[str], None]
) -> Change | None:
    try:
        idle = query()
    except PilotError as error:
        if not error.transient:
            raise
        warn(f"skipped this poll: {error}")
        return None
    return recorder.poll(time_s, idle)
