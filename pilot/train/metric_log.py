"""Logs a session to TensorBoard: one run, whichever process writes, with each point exactly once.

Every rank stores its newest points, and rank 0 writes each immediately, so that a kill loses none. A new rank 0 opens
its own file, declares older points from its first step on void (TensorBoard's ``purge_step``, because a resumed run
repeats those steps), and writes its stored points. Values that a script reports before that step (at the end of an
epoch from which the run resumes) are written unless the files have them.
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
from pilot.train.node.membership import Membership

if TYPE_CHECKING:
    from tensorboard.summary.writer.record_writer import RecordWriter

MAX_POINTS = 2000
NEVER = -1
PREFIX = "events.out.tfevents."
VERSION = "brain.Event:2"


class MetricPoint(NamedTuple):
    """Values by name after ``step`` steps. ``reported``: by the script; otherwise measured in that step."""

    step: int
    unix_s: float
    values: Mapping[str, float]
    reported: bool


class MetricLog:
    """The log of one session, in ``folder``, which all nodes share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._points: deque[MetricPoint] = deque(maxlen=MAX_POINTS)
        self._reported: dict[int, dict[str, float]] = {}
        self._step = NEVER
        self._file: EventFile | None = None

    def report(self, step: int, values: Mapping[str, float]) -> None:
        """Note ``values`` that the script reported after ``step`` steps; they replace earlier ones for that step."""
        self._reported.setdefault(step, {}).update(values)

    def stepped(self, member: Membership, step: int, values: Mapping[str, float]) -> None:
        """Log ``values`` of step ``step``, which is done, and reports before it."""
        reported = self._taken(step)
        if self._step not in (NEVER, step - 1):  # other processes have done steps, and logged them
            self._points.clear()
            reported = []
        self._step = step
        new = [*reported, MetricPoint(step, time.time(), dict(values), reported=False)]
        self._points += new
        self._write(member, new)

    def held(self, step: int) -> None:
        """Continue after ``step``: a round is held, in which another node has done more steps."""
        self._step = step

    def finished(self, member: Membership) -> None:
        """Log the last reports, after the loop."""
        new = self._taken(self._step + 1)
        self._points += new
        self._write(member, new)

    def _taken(self, before: int) -> list[MetricPoint]:
        """Take the reports before step ``before``, which are final: a void step has been reported again by now."""
        steps = sorted(step for step in self._reported if step < before)
        return [MetricPoint(step, time.time(), self._reported.pop(step), reported=True) for step in steps]

    def _write(self, member: Membership, new: list[MetricPoint]) -> None:
        if member.rank != 0:
            self._file = None
        elif self._file is not None:
            self._file.add(new)
        elif self._points:
            first = next((point.step for point in self._points if not point.reported), self._points[0].step)
            new = [one for one in self._points if one.step >= first or not _is_logged(self._folder, one)]
            self._file = EventFile(self._folder, member.generation, first)
            self._file.add(new)


class EventFile:
    """A TensorBoard event file, written without a thread or a buffer."""

    def __init__(self, folder: Path, generation: int, purge_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # Files are read in the order of their names: sort after the existing ones, even if this node's clock is slow.
        stamp = max([int(time.time()), *map(_stamp, folder.glob(f"{PREFIX}*"))])
        whose = f"g{generation:08d}.{socket.gethostname()}.{os.getpid()}"
        while os.path.lexists(path := folder / f"{PREFIX}{stamp:010d}.{whose}"):
            stamp += 1  # this process has made another file in the same second
        self._records: RecordWriter = RecordWriter(path.open("xb", buffering=0))
        self._event(wall_time=time.time(), file_version=VERSION)
        self._event(wall_time=time.time(), step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def add(self, points: list[MetricPoint]) -> None:
        """Append ``points`` to the file."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            self._event(wall_time=point.unix_s, step=point.step, summary=Summary(value=values))

    def _event(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(**fields).SerializeToString())


def _is_logged(folder: Path, point: MetricPoint) -> bool:
    """Return whether the files in ``folder`` have a point of this step with all of its names."""
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    for path in sorted(folder.glob(f"{PREFIX}*"), reverse=True):
        events = [Event.FromString(record) for record in RawEventFileLoader(str(path)).Load()]
        at_step = (one for one in events if one.step == point.step)
        if any(point.values.keys() <= {value.tag for value in one.summary.value} for one in at_step):
            return True
        if any(one.HasField("session_log") and one.step <= point.step for one in events):
            return False  # this file makes the step in earlier files void
    return False


def _stamp(path: Path) -> int:
    stamp = path.name.removeprefix(PREFIX).partition(".")[0]
    return int(stamp) if stamp.isdecimal() and len(stamp) <= 10 else 0


def metric_log(kind: str, folder: str | os.PathLike[str]) -> MetricLog:
    """Return the log for ``session.log_to``; :class:`UserError` if that is not supported."""
    if kind != "tensorboard":
        raise UserError(f"session.log_to({kind!r}, ...): only 'tensorboard' is supported")
    try:
        import tensorboard.summary.writer.record_writer  # noqa: F401  # importing it later would delay the first point
    except ImportError:
        raise UserError("session.log_to('tensorboard', ...) needs the package: pip install tensorboard") from None
    return MetricLog(Path(folder))
