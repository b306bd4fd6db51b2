"""Checkpoints of one trainer: written from a copy, off the training thread; loaded if no rank has a state."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilot.checkpoint.parts import own_rows
from pilot.checkpoint.snapshot import Snapshots
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError, Unreadable, UserError
from pilot.io import trainer_folder, wire
from pilot.train.node.membership import Membership
from pilot.train.state.identity import for_another

if TYPE_CHECKING:
    from pilot.checkpoint.parts import WrittenPart
    from pilot.checkpoint.reader import Wanted
    from pilot.checkpoint.store import Written

Part = tuple[int, Callable[[str], bool]]
"""Which process of the node, and which arrays are the same on all processes."""

_PARTS_LIMIT_S = 60.0
"""How long the first process of a node waits for the parts of the others while nothing is written."""
_LOOK_S = 0.05
_READ_AGAIN_S = (0.2, 0.5, 1.0, 2.0, 4.0, 4.0)
"""The pauses before a checkpoint that cannot be read is tried again on this node."""


class Saver:
    """Writes one checkpoint, or one part of one, at a time.

    ``failed_in`` is the newest generation in which the ranks' parts did not make a checkpoint; ``next_step``: what lay
    beside the checkpoint that was loaded (b"": nothing); ``given_up``: see
    :class:`~pilot.train.node.membership.Membership`.

    Parameters
    ----------
    trainer, uid : whose checkpoints
    directory : where its checkpoints are
    kept : how many of the newest to keep
    tell : called with the outcome of each write, from any thread
    agreed_step : up to which all ranks certainly held the same state; the newest checkpoint up to there is kept as well
    per_node : how many ranks of a node hold shards of the state
    """

    def __init__(
        self,
        trainer: str,
        uid: str,
        directory: Path,
        kept: int,
        tell: Callable[[wire.CheckpointWritten], None],
        agreed_step: Callable[[], int | None] = lambda: None,
        per_node: int = 1,
    ) -> None:
        self._per_node = per_node
        self._trainer = trainer
        self._uid = uid
        self._directory = directory
        self._kept = kept
        self._tell = tell
        self._agreed_step = agreed_step
        self._thread: threading.Thread | None = None
        self._snapshots = Snapshots()
        self._part: WrittenPart | None = None
        self._beside: threading.Thread | None = None
        self.failed_in = 0
        self.next_step = b""
        self.given_up = 0

    @property
    def busy(self) -> bool:
        """Whether a write is in progress in the background."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, generation: int, step: int, state: Encoded) -> None:
        """Write a copy of ``state`` in the background; not while ``busy``."""
        copy = self._snapshots.take(state)
        self._start(lambda: self._write(generation, step, copy, False))

    def start_part(self, group: Membership, step: int, state: Encoded, shared: Callable[[str], bool]) -> None:
        """Write this rank's part of ``state`` in the background, from a copy; not while ``busy``.

        ``shared`` says which arrays are the same on all ranks.
        """
        own = own_rows(state, group.rank // self._per_node, group.size // self._per_node)
        copy = self._snapshots.take(own)
        self._part = None
        self._start(lambda: self._write_part(group, step, copy, shared))

    def start_index(self, group: Membership, step: int) -> None:
        """Combine the parts into a checkpoint in the background, after all ranks wrote theirs; not while ``busy``."""
        part, self._part = self._part, None
        if part is None:  # ours could not be written, which was reported
            self.failed_in = group.generation
        else:
            self._start(lambda: self._write_index(group, step, part))

    def wait(self) -> None:
        """Wait until it is not ``busy``."""
        for thread in (self._thread, self._beside):
            if thread is not None:
                thread.join()

    def distrust(self, step: int) -> Path | None:
        """Set aside what was saved after ``step``; returns the newest remaining checkpoint."""
        from pilot.checkpoint import store

        self.wait()
        return store.set_apart(self._directory, step, self._uid, self.given_up)

    def keep_next(self, generation: int, step: int, block: bytes) -> None:
        """Write ``block`` in the background, beside the checkpoint of this step, which may still be being written."""
        self._beside = threading.Thread(target=self._write_beside, args=(generation, step, block), daemon=True)
        self._beside.start()

    def _write_beside(self, generation: int, step: int, block: bytes) -> None:
        from pilot.checkpoint import store

        with suppress(CheckpointError):  # the checkpoint's own failure is reported, and nothing depends on this
            store.write_next_step(self._directory, generation, step, block, self._uid)

    def drop_part(self) -> None:
        """Remove the part that was or is being written, because there will be no checkpoint of it."""
        from pilot.checkpoint import store

        self.wait()
        if self._part is not None:
            store.remove_part(self._part.path, self._uid)
            self._part = None

    def write(self, generation: int, step: int, state: Encoded, *, asked: bool, part: Part | None = None) -> None:
        """Write ``state`` now, after any write in the background. ``part``: all processes of a node write their parts,
        and the first one combines them into a checkpoint when the others' parts are there; if that was ``asked`` for,
        in the background.
        """
        self.wait()
        if part is None:
            self._write(generation, step, state, asked)
        else:
            self._write_of_node(generation, step, state, part, asked)

    def _write_of_node(self, generation: int, step: int, state: Encoded, part: Part, asked: bool) -> None:
        from pilot.checkpoint import store

        (rank, shared), size = part, self._per_node
        try:
            written = store.write_part(self._directory, generation, step, rank, size, state, shared, self._uid)
        except (CheckpointError, OSError) as error:
            self._tell(wire.CheckpointWritten(self._trainer, generation, step, asked, error=str(error)))
            return
        if rank == 0:
            self._start(lambda: self._write_node_index(generation, step, written, asked))
            if not asked:
                self.wait()

    def _write_node_index(self, generation: int, step: int, part: WrittenPart, asked: bool) -> None:
        from pilot.checkpoint import names, store

        size = self._per_node
        others = [self._directory / names.part_name(generation, step, number, size) for number in range(1, size)]

        def told(done: Written) -> None:
            seconds = part.seconds + done.seconds
            sizes = (seconds, done.bytes, seconds)
            self._tell(wire.CheckpointWritten(self._trainer, generation, step, asked, str(done.path), "", *sizes))

        try:
            self._await(others)
            store.write_index(self._directory, generation, step, size, told=told, **self._keep())
        except (CheckpointError, OSError) as error:
            self._tell(wire.CheckpointWritten(self._trainer, generation, step, asked, error=str(error)))

    def _await(self, parts: Sequence[Path]) -> None:
        """Wait for ``parts``, as long as something is being written: large ones take long on a slow file system."""
        written, waited_s = -1, _PARTS_LIMIT_S
        while not all(path.exists() for path in parts):
            if waited_s >= _PARTS_LIMIT_S:
                before, written = written, _bytes_under_way(self._directory)
                if written == before:
                    return
                waited_s = 0.0
            time.sleep(_LOOK_S)
            waited_s += _LOOK_S  # not by the clock: while the node stood still (suspended), nobody could write

    def _start(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def _write(self, generation: int, step: int, state: Encoded, asked: bool) -> None:
        from pilot.checkpoint import store

        def told(done: Written) -> None:
            sizes = (done.seconds, done.bytes, done.seconds)
            self._tell(wire.CheckpointWritten(self._trainer, generation, step, asked, str(done.path), "", *sizes))

        try:
            store.write(self._directory, generation, step, state, told=told, **self._keep())
        except (CheckpointError, OSError) as error:
            self._tell(wire.CheckpointWritten(self._trainer, generation, step, asked, error=str(error)))

    def _write_part(self, group: Membership, step: int, state: Encoded, shared: Callable[[str], bool]) -> None:
        from pilot.checkpoint import store

        try:
            self._part = store.write_part(
                self._directory,
                group.generation,
                step,
                group.rank,
                group.size,
                state,
                shared,
                self._uid,
            )
        except (CheckpointError, OSError) as error:
            self._tell(wire.CheckpointWritten(self._trainer, group.generation, step, False, error=str(error)))

    def _write_index(self, group: Membership, step: int, part: WrittenPart) -> None:
        from pilot.checkpoint import store

        generation = group.generation

        def told(done: Written) -> None:
            sizes = (part.seconds + done.seconds, done.bytes, part.seconds * done.bytes / part.bytes + done.seconds)
            self._tell(wire.CheckpointWritten(self._trainer, generation, step, False, str(done.path), "", *sizes))

        try:
            store.write_index(self._directory, generation, step, group.size, told=told, **self._keep())
        except (CheckpointError, OSError) as error:
            self.failed_in = generation
            self._tell(wire.CheckpointWritten(self._trainer, generation, step, False, error=str(error)))

    def _keep(self) -> dict[str, Any]:
        kept = {"kept": self._kept, "agreed_step": self._agreed_step(), "given_up": self.given_up}
        return kept | {"uid": self._uid}

    def load(self, group: Membership, remark: Callable[[str], None], wanted: Wanted | None) -> Mapping[str, Any] | None:
        """The newest intact checkpoint that ``group`` may load, or else the one that the trainer starts from; None if
        there certainly is neither. What cannot be read now is tried again for a while.

        ``remark`` is called for each file that was skipped, with the reason. ``wanted``: which rows to load; None: all.

        Raises
        ------
        CheckpointError : there is or should be a checkpoint, and none can be loaded; ``transient``: now, and here
        UserError : the checkpoint that it starts from is damaged
        """
        said: dict[str, None] = {}

        def once(text: str) -> None:
            if text not in said:
                said[text] = None
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
        from pilot.checkpoint import reader, store

        wanted = wanted or reader.everything

        def skipped(path: Path, why: str) -> None:
            remark(f"checkpoint {path.name} was skipped: {why}")

        loaded = store.load_newest(self._directory, group.generation, skipped, self._uid, wanted, group.given_up)
        if loaded is not None:
            try:
                self.next_step = store.next_step_of(loaded.path, self._uid)
            except Unreadable as error:
                remark(f"the next step is not compared with the one before: {error}")
            return loaded.state
        if group.saved_step:
            raise Unreadable(f"step {group.saved_step} was saved, and there is no checkpoint in {self._directory}")
        return self._given(wanted)

    def _given(self, wanted: Wanted) -> Mapping[str, Any] | None:
        """The state that the trainer was submitted with; None: it starts from scratch."""
        from pilot.checkpoint import store
        from pilot.checkpoint.own_directory import held

        start = trainer_folder.start_of(self._directory.parent)
        try:
            with held(start.parent, self._uid) as place:
                return for_another(store.load(place / start.name, wanted).state)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            if error.transient:
                raise
            raise UserError(f"cannot start from the given checkpoint: {error}") from None


def _bytes_under_way(directory: Path) -> int:
    from pilot.checkpoint import names

    total = 0
    for temporary in names.temporaries(directory):
        with suppress(OSError):  # it is written by now
            total += temporary.path.stat().st_size
    return total
