"""What a session logs to TensorBoard: one run, whichever process writes it, with each point exactly once.

Every rank keeps its newest points and rank 0 writes them, each at once: a process that is killed loses none. Who
becomes rank 0 opens a file of its own, says that what is logged from its first point on is void (TensorBoard's
``purge_step``: a run that resumes does those steps again), and writes what it has kept. What a script reports at the
end of an epoch it reports again where all ranks were killed after a checkpoint from just there: then it comes twice.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pilot.core.errors import UserError
from pilot.train.membership import Membership

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

KEPT = 2000
NEVER = -1
PREFIX = "events.out.tfevents."
VERSION = "brain.Event:2"


class Point(NamedTuple):
    """Values by name, with the number of steps. ``reported``: by the script, else measured for that step."""

    step: int
    unix_s: float
    values: Mapping[str, float]
    reported: bool


class MetricLog:
    """Points of one session, in ``folder``, which all nodes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: deque[Point] = deque(maxlen=KEPT)
        self._reported: dict[int, dict[str, float]] = {}
        self._step = NEVER
        self._file: EventFile | None = None

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """The script reported ``values`` after ``step`` steps; what it says again of that step takes their place."""
        self._reported.setdefault(step, {}).update(values)

    def stepped(self, member: Membership, step: int, values: Mapping[str, float]) -> None:
        """It is step number ``step`` that is done now, with these values."""
        reported = self._taken(step)
        if self._step not in (NEVER, step - 1):  # steps were done elsewhere: whoever did them has logged until here
            self._kept.clear()
            reported = []
        self._step = step
        new = [*reported, Point(step, time.time(), dict(values), reported=False)]
        self._kept += new
        self._write(member, new)

    def finished(self, member: Membership) -> None:
        """The loop is over."""
        new = self._taken(self._step + 1)
        self._kept += new
        self._write(member, new)

    def _taken(self, before: int) -> list[Point]:
        """What was reported until step ``before``: a step that was void has been reported on again by now."""
        steps = sorted(step for step in self._reported if step < before)
        return [Point(step, time.time(), self._reported.pop(step), reported=True) for step in steps]

    def _write(self, member: Membership, new: list[Point]) -> None:
        if member.rank != 0:
            self._file = None
        elif self._file is not None:
            self._file.add(new)
        elif self._kept:
            first = next((point.step for point in self._kept if not point.reported), self._kept[0].step)
            self._file = EventFile(self._folder, member.generation, first)
            self._file.add(list(self._kept))


class EventFile:
    """A file as TensorBoard reads them, written without a thread and without a buffer."""

    def __init__(self, folder: Path, generation: int, purge_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # They are read in the order of their names: after those that are there, also where a node's clock is late.
        stamp = max([int(time.time()), *map(_stamp, folder.glob(f"{PREFIX}*"))])
        path = folder / f"{PREFIX}{stamp:010d}.g{generation:08d}.{socket.gethostname()}.{os.getpid()}"
        self._records: RecordWriter = RecordWriter(path.open("wb", buffering=0))
        self._event(wall_time=time.time(), file_version=VERSION)
        self._event(wall_time=time.time(), step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, points: list[Point]) -> None:
        """Write ``points``."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            self._event(wall_time=point.unix_s, step=point.step, summary=Summary(value=values))

    def _event(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(**fields).SerializeToString())


def _stamp(path: Path) -> int:
    stamp = path.name.removeprefix(PREFIX).partition(".")[0]
    return int(stamp) if stamp.isdecimal() and len(stamp) <= 10 else 0


def metric_log(kind: str, folder: str | os.PathLike[str]) -> MetricLog:
    """What ``session.log_to`` asks for; :class:`UserError` where there is no such thing."""
    if kind != "tensorboard":
        raise UserError(f"session.log_to({kind!r}, ...): only 'tensorboard' is supported")
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401  # the log's first point would come too late
    except ImportError:
        raise UserError("session.log_to('tensorboard', ...) needs the package: pip install tensorboard") from None
    return MetricLog(Path(folder))
