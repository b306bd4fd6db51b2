"""Restores the core and the books from a journal, as they were when it ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, one_line
from pilot.core.version import __version__
from pilot.io.core_state import state_digest
from pilot.io.journal import Contents, Decision, Entry, JournalNote, Segment
from pilot.service import snapshot
from pilot.service.snapshot import Books

REFUSED_MAX = 20
"""At most this many entries of a journal may be skipped; with more, it is from another version, or ruined."""


@dataclass(slots=True)
class Restored:
    """``remarks`` are for people, such as that the snapshot was unusable; ``left_out`` are the skipped entries."""

    core: Coordinator
    books: Books
    remarks: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


Beginning = Callable[[], tuple[Restored, Iterable[Segment]]]
"""The state before the first entry, created anew for each attempt, and the segments to replay from there."""


def restore(contents: Contents, fresh: Callable[[], Coordinator]) -> Restored:
    """Restore from the snapshot with which the last segment begins, or, if that is unusable, from the journal's
    beginning.

    An entry that the core cannot apply (because an earlier version or a bug wrote it) is skipped, and everything before
    it is replayed, from the same starting point or a ``fresh`` core. After a snapshot it may be the snapshot's fault,
    so the whole journal is tried first.

    Raises
    ------
    JournalError
        There are more than :data:`REFUSED_MAX` such entries, or a required segment is missing or damaged.
    """

    def from_snapshot() -> tuple[Restored, Iterable[Segment]]:
        state, books = snapshot.read(contents)
        core = fresh()
        core.restore(state)
        return Restored(core, books), [contents.last]

    def from_nothing() -> tuple[Restored, Iterable[Segment]]:
        core = fresh()
        return Restored(core, Books.beside(core)), contents.segments

    if contents.header.after == 0:
        return _skipping(contents, from_nothing)
    usable = False
    try:
        restored, found = from_snapshot()
        usable = True
        bad = _replay(restored, found, ())
        if bad is None:
            return restored
        why = f"{_said(*bad)} cannot be applied after the snapshot"
    except JournalError as error:
        why = str(error)
    try:
        restored = _skipping(contents, from_nothing)
    except JournalError:
        if not usable:
            raise
        return _skipping(contents, from_snapshot)
    restored.remarks.insert(0, f"{why}; the whole journal was replayed instead")
    return restored


def _skipping(contents: Contents, beginning: Beginning) -> Restored:
    """Replay, skipping the entries that fail; each is found only when it fails."""
    refused: dict[int, str] = {}
    while True:
        restored, found = beginning()
        bad = _replay(restored, found, refused)
        if bad is None:
            restored.left_out += refused.values()
            return restored
        refused[bad[0].seq] = _said(*bad)
        if len(refused) > REFUSED_MAX:
            raise JournalError(
                f"more than {REFUSED_MAX} entries of the journal cannot be applied: {_said(*bad)}; use the "
                f"version that wrote it, {contents.header.version}, or start a new pool: pilot up --fresh keeps this"
                " one aside"
            )


def _said(decision: Decision, error: Exception) -> str:
    return f"entry {decision.seq} ({type(decision.event).__name__}): {one_line(str(error))}"


def _replay(
    restored: Restored, found: Iterable[Segment], without: Collection[int]
) -> tuple[Decision, Exception] | None:
    """The first entry that fails, and how; None if none does."""
    for segment in found:
        header = segment.header
        comparable = header.after and header.version == __version__ and not (without or restored.left_out)
        if comparable and state_digest(restored.core) != header.core:
            restored.remarks.append(f"after entry {header.after} the state is not the one that was recorded")
        restored.left_out += segment.skipped
        for entry in _kept(segment.entries, without):
            if isinstance(entry, JournalNote):
                restored.books.remark(entry.now_s, entry.note)
                continue
            try:
                commands = restored.core.handle(entry.now_s, entry.event)
                restored.books.note(entry.now_s, entry.event, commands)
            except Exception as error:  # whatever it is, every restart would fail on it again
                return entry, error
    return None


def _kept(entries: Iterable[Entry], without: Collection[int]) -> Iterator[Entry]:
    return (entry for entry in entries if entry.seq not in without)
