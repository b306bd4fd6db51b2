"""Restores the core and the books from a journal, as they were when it ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pilot.checkpoint.names import highest_generation
from pilot.checkpoint.own_directory import held
from pilot.core.commands import Command
from pilot.core.config import State
from pilot.core.coordinator import Coordinator
from pilot.core.errors import CheckpointError, JournalError, PilotError, one_line
from pilot.core.events import Event, PoolChanged
from pilot.core.ids import NO_GENERATION, Generation, NodeId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.version import __version__
from pilot.history.monitor import Monitor
from pilot.rundir import segments
from pilot.rundir.entries import Entry, JournalNote
from pilot.rundir.follower import Follower
from pilot.rundir.journal import Contents, Segment
from pilot.rundir.rundir import RunDir
from pilot.rundir.segments import state_digest
from pilot.service.agents.pending import PendingCommands
from pilot.service.requests.launch_store import SPEC, LaunchStore

REFUSED_MAX = 20
"""At most this many entries of an undamaged journal may be skipped; with more, it is from another version."""


@dataclass(slots=True)
class Restored:
    """The restored core and books. ``missing`` has lines about lost entries of the journal, ``refused`` about entries
    that could not be applied and were skipped, ``remarks`` about others, such as an unusable snapshot. ``generations``
    has the highest one of each trainer that the journal names.
    """

    core: Coordinator
    books: Books
    remarks: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    generations: dict[TrainerId, Generation] = field(default_factory=dict)

    @property
    def flaws(self) -> list[str]:
        """Lines about all damage. After a gap, entries that do not apply are its consequence: the first one stands for
        all."""
        more = f", and {len(self.refused) - 1} more" if len(self.refused) > 1 else ""
        consequence = [f"because of that, {self.refused[0]}{more}"] if self.missing and self.refused else self.refused
        return [*self.remarks, *self.missing, *consequence]


def restore(contents: Contents, fresh: Callable[[], Coordinator]) -> Restored:
    """Restore from the snapshot with which the last segment begins, or, if that is unusable, from the journal's
    beginning.

    Damaged entries are left out, and those that cannot be applied without them. An entry of an undamaged journal that
    cannot be applied after the snapshot may be the snapshot's fault, so the complete journal is tried then; if it lacks
    entries, the snapshot counts.

    Raises
    ------
    JournalError
        More than :data:`REFUSED_MAX` entries of an undamaged journal cannot be applied; or the snapshot is of another
        version or cannot be read now, and the journal lacks entries.
    """
    if contents.header.after == 0:
        return _from_nothing(contents, fresh)
    short, again = None, False
    try:
        short = _from_snapshot(contents, fresh)
        if short.missing or not short.refused:
            return short
        why = f"{short.refused[0]} after the snapshot"
    except JournalError as error:
        why, again = str(error), error.transient
    try:
        complete = _from_nothing(contents, fresh)
    except JournalError:
        if short is None:
            raise
        return short
    if complete.missing and short is not None:
        return short
    if complete.missing and again:
        raise JournalError(f"{why}, and {complete.missing[0]}; {_instead(contents)}", transient=True)
    complete.remarks.insert(0, f"{why}; the whole journal was replayed instead")
    return complete


def _from_snapshot(contents: Contents, fresh: Callable[[], Coordinator]) -> Restored:
    state, books = snapshot_of(contents)
    core = fresh()
    core.restore(state)
    return _replayed(contents, Restored(core, books), [contents.last])


def _from_nothing(contents: Contents, fresh: Callable[[], Coordinator]) -> Restored:
    core = fresh()
    return _replayed(contents, Restored(core, Books.beside(core)), contents.segments)


def _replayed(contents: Contents, restored: Restored, found: Iterable[Segment]) -> Restored:
    """``restored``, brought forward through the segments that were ``found``."""
    follower = Follower(restored.core)
    restored.refused = follower.refused
    for segment in found:
        restored.remarks += segment.odd
        restored.missing += segment.missing
        _compare(restored, segment)
        for trainer, generation in segment.generations.items():
            restored.generations[trainer] = max(generation, restored.generations.get(trainer, generation))
        for entry in segment.entries:
            _apply(restored, follower, entry)
            if len(follower.refused) > REFUSED_MAX and not restored.missing:
                raise JournalError(
                    f"more than {REFUSED_MAX} entries of the journal cannot be applied: {follower.refused[-1]}; "
                    f"{_instead(contents)}"
                )
    return restored


def _compare(restored: Restored, segment: Segment) -> None:
    """Compare the state with the one that was recorded at the beginning of ``segment``."""
    header = segment.header
    comparable = header.after and header.version == __version__ and not (restored.missing or restored.refused)
    if comparable and state_digest(restored.core) != header.core:
        restored.remarks.append(f"after entry {header.after} the state is not the one that was recorded")


def _apply(restored: Restored, follower: Follower, entry: Entry) -> None:
    if isinstance(entry, JournalNote):
        restored.books.remark(entry.now_s, entry.note)
        return
    for event, commands in follower.follow(entry):
        try:
            restored.books.note(entry.now_s, event, commands, entry.seq)
        except Exception as error:  # whatever it is, every restart would fail on it again
            follower.refused.append(f"status and history do not count entry {entry.seq}: {one_line(str(error))}")


def _instead(contents: Contents) -> str:
    return (
        f"use the version that wrote it, {contents.header.version}, or start a new pool: pilot up --fresh keeps this "
        "one aside"
    )


log = logging.getLogger(__name__)


def lost_generations(
    core: Coordinator, launches: LaunchStore, named: Mapping[TrainerId, Generation]
) -> tuple[tuple[TrainerId, Generation], ...]:
    """The trainers of which the journal (``named``) or a file has a higher generation than ``core``, and that one."""
    found: list[tuple[TrainerId, Generation]] = []
    for trainer in core.trainers.values():
        highest = max(named.get(trainer.id, NO_GENERATION), _on_disk(launches, trainer.spec))
        if highest > trainer.generation:
            found.append((trainer.id, highest))
    return tuple(found)


def _on_disk(launches: LaunchStore, trainer: TrainerSpec) -> Generation:
    try:
        with held(launches.directory(trainer) / "checkpoints", trainer.uid) as place:
            return Generation(highest_generation(place))
    except FileNotFoundError:
        return NO_GENERATION
    except CheckpointError as error:  # its workers will wait until it can be read, or report it
        log.warning("%s", error)
        return NO_GENERATION


def lost_trainers(rundir: RunDir, core: Coordinator, began_unix_s: float) -> str:
    """A line about trainers that have a folder and are not in the journal of this pool, and what to do; "": none.

    ``began_unix_s``: when the pool began. Earlier pools have left folders, too.
    """
    lost: list[str] = []
    try:
        for folder in sorted(rundir.trainers.iterdir()):
            name, spec = TrainerId(folder.name.rpartition("-")[0]), folder / SPEC
            known = not name or name in core.trainers or name in core.past or folder.is_symlink()
            if not known and spec.exists() and spec.stat().st_mtime >= began_unix_s:
                lost.append(folder.name)
    except OSError as error:
        log.warning("cannot search for trainers that the journal lacks: %s", error)
    if not lost:
        return ""
    return (
        f"in {rundir.trainers}, but not in the journal: {', '.join(lost)}; either the submission was never confirmed, "
        "or it was lost: submit it again, with --from and a file in its checkpoints/ if it has trained"
    )


LOST_KEPT = 10_000
"""Lost nodes that are remembered; an agent that comes back after that many others is treated as a stranger."""


@dataclass(slots=True)
class Books:
    """The service's state beside the core, derived from the same events and notes; plain data. ``lost`` has the reasons
    why nodes were lost, ``scaled`` the number of pilots since ``pilot scale``: None: as many as the trainers can use;
    a text: of each type (:mod:`pilot.site.pilot_counts`).
    """

    pending: PendingCommands = field(default_factory=PendingCommands)
    monitor: Monitor = field(default_factory=Monitor)
    lost: dict[NodeId, str] = field(default_factory=dict)
    scaled: tuple[int | str | None] | None = None

    @classmethod
    def beside(cls, core: Coordinator) -> Books:
        """The initial books for a fresh ``core``."""
        return cls(monitor=Monitor(ended_kept=core.config.ended_kept))

    def note(self, now_s: float, event: Event, commands: Sequence[Command], entry: int = 0) -> None:
        """The core returned ``commands`` for ``event``, which is in the journal's ``entry``."""
        self.pending.note(now_s, event, commands, entry)
        self.monitor.note(now_s, event, commands)
        if isinstance(event, PoolChanged):
            for node in event.lost:
                remember_lost(self.lost, node, event.cause)

    def remark(self, now_s: float, note: Mapping[str, str | float | None]) -> None:
        """Process a note of the journal."""
        if "pilots" in note:
            pilots = note["pilots"]
            self.scaled = (pilots if isinstance(pilots, int | str) else None,)
        else:
            self.monitor.remark(now_s, note)


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file with a coordinator's state, so that a restart need not read the complete journal, from which it can be
    recreated. ``core`` is the canonical form of the core's state after the first ``after`` entries.
    """

    version: str
    after: int
    core: msgspec.Raw
    books: Books


def taken(core: Coordinator, books: Books, after: int) -> tuple[str, bytes]:
    """The digest of the core's state, and the snapshot."""
    state = segments.state_bytes(core)
    return segments.digest(state), msgspec.msgpack.encode(Snapshot(__version__, after, msgspec.Raw(state), books))


def snapshot_of(contents: Contents) -> tuple[State, Books]:
    """The state at the beginning of the journal's last segment.

    Raises
    ------
    JournalError
        There is no such snapshot, or it is damaged: the journal must be replayed. Transient if it is only from another
        version, or cannot be read now.
    """
    header = contents.header
    if header.version != __version__:
        why = f"the snapshot is of version {header.version}, this is {__version__}"
        raise JournalError(why, transient=True)  # that version can read it
    data = segments.read_snapshot(contents.path, header.after, header.snapshot)
    try:
        found = msgspec.msgpack.decode(data, type=Snapshot)
    except (msgspec.DecodeError, PilotError, ValueError, OverflowError, RecursionError) as error:
        raise JournalError(f"the snapshot after entry {header.after} is invalid: {error}") from None
    state = bytes(found.core)
    if found.after != header.after or segments.digest(state) != header.core:
        raise JournalError(f"the snapshot after entry {header.after} belongs to another journal")
    return segments.state_of(state), found.books


def remember_lost(lost: dict[NodeId, str], node: NodeId, why: str) -> None:
    """Remember that ``node`` is lost; if there are too many, forget the oldest."""
    lost[node] = why
    if len(lost) > LOST_KEPT:
        del lost[next(iter(lost))]
