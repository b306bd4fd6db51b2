"""Checkpoints of one trainer: written from a copy, off the training thread; loaded if no rank has a state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pilot.checkpoint import names, reader, store
from pilot.checkpoint.names import Age
from pilot.checkpoint.own_directory import held
from pilot.checkpoint.publish import own_rows
from pilot.checkpoint.reader import Wanted
from pilot.checkpoint.snapshot import Snapshots
from pilot.checkpoint.store import Written
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError, Unreadable, UserError
from pilot.protocol import wire
from pilot.rundir import trainer_folder
from pilot.train.node.membership import Membership
from pilot.train.state.identity import for_another

Shared = Callable[[str], bool]
Part = tuple[int, Shared]
"""The process's number on its node, and a function that accepts arrays that are the same on all processes."""

_PARTS_LIMIT_S = 60.0
"""The first process of a node waits so long for the parts of the others while nothing is written."""
_POLL_S = 0.05
_READ_AGAIN_S = (0.2, 0.5, 1.0, 2.0, 4.0, 4.0)
"""The pauses before a checkpoint that cannot be read is tried again on this node."""


@dataclass
class Saver:
    """Writes one checkpoint, or one part of one, at a time.

    ``failed_in`` is the newest generation in which the ranks' parts did not make a checkpoint; ``next_step``: the block
    beside the loaded checkpoint (b"": none); ``given_up``: see :class:`~pilot.train.node.membership.Membership`.
    """

    trainer: str  #: whose checkpoints
    uid: str  #: whose checkpoints
    directory: Path  #: where its checkpoints are
    kept: int  #: how many of the newest to keep
    report: Callable[[wire.CheckpointWritten], None]  #: called with the outcome of each write, from any thread
    #: up to which all ranks certainly held the same state; the newest checkpoint up to there is kept as well
    agreed_step: Callable[[], int | None] = lambda: None
    per_node: int = 1  #: how many ranks of a node hold shards of the state
    failed_in: int = field(default=0, init=False)
    next_step: bytes = field(default=b"", init=False)
    given_up: int = field(default=0, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)
    _beside: threading.Thread | None = field(default=None, init=False)
    _part: Written | None = field(default=None, init=False)
    _snapshots: Snapshots = field(default_factory=Snapshots, init=False)

    @property
    def busy(self) -> bool:
        """Whether a write is in progress in the background."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, generation: int, step: int, state: Encoded) -> None:
        """Write a copy of ``state`` in the background; not while ``busy``."""
        age, copy = Age(generation, step), self._snapshots.take(state)
        self._start(lambda: self._write_state(age, copy, asked=False))

    def start_part(self, group: Membership, step: int, state: Encoded, shared: Shared) -> None:
        """Write this rank's part of ``state`` in the background, from a copy; not while ``busy``.

        ``shared`` accepts arrays that are the same on all ranks.
        """
        copy = self._snapshots.take(own_rows(state, group.rank // self.per_node, group.size // self.per_node))
        self._part = None

        def write() -> None:
            self._part = self._write_part(
                Age(group.generation, step), group.rank, group.size, copy, shared, asked=False
            )

        self._start(write)

    def start_index(self, group: Membership, step: int) -> None:
        """Combine the parts into a checkpoint in the background, after all ranks wrote theirs; not while ``busy``."""
        part, self._part = self._part, None
        self.failed_in = group.generation  # until it is written
        if part is not None:  # otherwise ours could not be written, which was reported
            self._start(lambda: self._combine(Age(group.generation, step), part, group.size))

    def wait(self) -> None:
        """Wait until it is not ``busy``."""
        for thread in (self._thread, self._beside):
            if thread is not None:
                thread.join()

    def distrust(self, step: int) -> Path | None:
        """Set aside the checkpoints of steps after ``step``; returns the newest remaining checkpoint."""
        self.wait()
        return store.set_aside(self.directory, step, self.uid, self.given_up)

    def keep_next(self, generation: int, step: int, block: bytes) -> None:
        """Write ``block`` in the background, beside the checkpoint of this step, which may still be being written."""

        def write() -> None:
            with suppress(CheckpointError):  # the checkpoint's own failure is reported, and nothing depends on this
                store.write_next_step(self.directory, generation, step, block, self.uid)

        self._beside = _started(write)

    def drop_part(self) -> None:
        """Remove the part that was or is being written, because there will be no checkpoint of it."""
        self.wait()
        if self._part is not None:
            store.remove_part(self._part.path, self.uid)
            self._part = None

    def write(self, generation: int, step: int, state: Encoded, *, asked: bool, part: Part | None = None) -> None:
        """Write ``state`` now, after any write in the background. ``part``: all processes of a node write their parts,
        and the first one combines them into a checkpoint when the others' parts are there; if that was ``asked`` for,
        in the background.
        """
        self.wait()
        age = Age(generation, step)
        if part is None:
            self._write_state(age, state, asked)
            return
        rank, shared = part
        written = self._write_part(age, rank, self.per_node, state, shared, asked)
        if written is not None and rank == 0:
            self._start(lambda: self._combine_node(age, written, asked))
            if not asked:
                self.wait()

    def _start(self, work: Callable[[], None]) -> None:
        self._thread = _started(work)

    def _write_state(self, age: Age, state: Encoded, asked: bool) -> None:
        self._publish(age, partial(store.write, self.directory, *age, state), asked)

    def _write_part(
        self, age: Age, part: int, parts: int, state: Encoded, shared: Shared, asked: bool
    ) -> Written | None:
        write = partial(store.write_part, self.directory, *age, part, parts, state, shared, self.uid)
        return self._attempt(age, write, asked)

    def _combine(self, age: Age, part: Written, parts: int) -> None:
        """Publish the index of all ranks' parts; ``part``: this rank's."""
        if self._publish(age, partial(store.write_index, self.directory, *age, parts), False, part, shares=True):
            self.failed_in = 0

    def _combine_node(self, age: Age, part: Written, asked: bool) -> None:
        """Publish the index of the parts of a node's processes, which always write together."""
        parts = self.per_node

        def write(**how: Any) -> Written:
            self._await([self.directory / names.part_name(*age, n, parts) for n in range(parts)])
            return store.write_index(self.directory, *age, parts, **how)

        self._publish(age, write, asked, part)

    def _publish(
        self, age: Age, write: Callable[..., Written], asked: bool, part: Written | None = None, *, shares: bool = False
    ) -> bool:
        """Make a checkpoint with ``write``, after this rank's ``part`` if it has parts; returns whether that succeeded.
        ``shares``: by itself this rank would write all parts.
        """
        part_s = 0.0 if part is None else part.seconds

        def report(done: Written) -> None:
            alone_s = done.seconds + part_s * (done.bytes / part.bytes if part is not None and shares else 1.0)
            seconds = done.seconds + part_s
            message = (self.trainer, *age, asked, str(done.path), "", seconds, done.bytes, alone_s)
            self.report(wire.CheckpointWritten(*message))

        keep = {"kept": self.kept, "agreed_step": self.agreed_step(), "given_up": self.given_up, "uid": self.uid}
        return self._attempt(age, partial(write, **keep, on_publish=report), asked) is not None

    def _attempt(self, age: Age, write: Callable[[], Written], asked: bool) -> Written | None:
        """Return the result of ``write``; None: it failed, which is reported."""
        try:
            return write()
        except (CheckpointError, OSError) as error:
            self.report(wire.CheckpointWritten(self.trainer, *age, asked, error=str(error)))
            return None

    def _await(self, parts: Sequence[Path]) -> None:
        """Wait for ``parts``, as long as something is being written: large ones take long on a slow file system."""
        written, waited_s = -1, _PARTS_LIMIT_S
        while not all(path.exists() for path in parts):
            if waited_s >= _PARTS_LIMIT_S:
                before, written = written, _bytes_under_way(self.directory)
                if written == before:
                    return
                waited_s = 0.0
            time.sleep(_POLL_S)
            waited_s += _POLL_S  # not by the clock: while the node stood still (suspended), nobody could write

    def load(self, group: Membership, remark: Callable[[str], None], wanted: Wanted | None) -> Mapping[str, Any] | None:
        """Return the newest intact checkpoint that ``group`` may load, or else that from which the trainer starts; None
        if there certainly is neither. A checkpoint that cannot be read now is tried again for a while.

        ``remark`` is called for each file that was skipped, with the reason. ``wanted``: which rows to load; None: all.

        Raises
        ------
        CheckpointError : there is or should be a checkpoint, and none can be loaded; ``transient``: now, and here
        UserError : the checkpoint that it starts from is damaged
        """
        remarks: set[str] = set()

        def once(text: str) -> None:
            if text not in remarks:
                remarks.add(text)
                remark(text)

        for pause_s in _READ_AGAIN_S:
            try:
                return self._load(group, once, wanted)
            except CheckpointError as error:
                if not error.transient:
                    raise
                once(f"its state cannot be loaded now, which is tried again: {error}")
            time.sleep(pause_s)
        return self._load(group, once, wanted)

    def _load(
        self, group: Membership, remark: Callable[[str], None], wanted: Wanted | None
    ) -> Mapping[str, Any] | None:
        wanted = wanted or reader.everything

        def skipped(path: Path, why: str) -> None:
            remark(f"checkpoint {path.name} was skipped: {why}")

        loaded = store.load_newest(self.directory, group.generation, skipped, self.uid, wanted, group.given_up)
        if loaded is not None:
            try:
                self.next_step = store.next_step_of(loaded.path, self.uid)
            except Unreadable as error:
                remark(f"the next step is not compared with the one before: {error}")
            return loaded.state
        if group.saved_step:
            raise Unreadable(f"step {group.saved_step} was saved, and there is no checkpoint in {self.directory}")
        return self._given(wanted)

    def _given(self, wanted: Wanted) -> Mapping[str, Any] | None:
        """The state that the trainer was submitted with; None: it starts from scratch."""
        start = trainer_folder.start_of(self.directory.parent)
        try:
            with held(start.parent, self.uid) as place:
                return for_another(store.load(place / start.name, wanted).state)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            if error.transient:
                raise
            raise UserError(f"cannot start from the given checkpoint: {error}") from None


def _started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def _bytes_under_way(directory: Path) -> int:
    total = 0
    for temporary in names.temporaries(directory):
        with suppress(OSError):  # it is written by now
            total += temporary.path.stat().st_size
    return total
