"""Restores the core and the books from a journal, as they were when it ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from pilot import __version__
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, one_line
from pilot.io.core_state import state_digest
from pilot.io.journal import Contents, Decision, Entry, JournalNote, Segment
from pilot.service import snapshot
from pilot.service.snapshot import Books

REFUSED_MAX = 20
"""At most this many entries of a journal may be skipped; with more it is another version's, or ruined."""


@dataclass(slots=True)
class Restored:
    """``remarks`` are for people: the snapshot that was no use; ``left_out`` the entries that could not be taken."""

    core: Coordinator
    books: Books
    remarks: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def restore(contents: Contents, fresh: Callable[[], Coordinator]) -> Restored:
    """From the snapshot with which the last segment begins, or, if that is unusable, from the journal's beginning.

    An entry that the core cannot apply (an earlier version could, or a bug wrote it) is skipped, and everything before
    it is replayed, from the same starting point or a ``fresh`` core.

    Raises
    ------
    JournalError
        There are more than :data:`REFUSED_MAX` such entries, or a required segment is missing or damaged.
    """
    refused: dict[int, str] = {}
    while True:
        restored, found = _beginning(contents, fresh)
        bad = _replay(restored, found, refused)
        if bad is None:
            restored.left_out += refused.values()
            return restored
        decision, error = bad
        refused[decision.seq] = f"entry {decision.seq} ({type(decision.event).__name__}): {one_line(str(error))}"
        if len(refused) > REFUSED_MAX:
            raise JournalError(
                f"more than {REFUSED_MAX} entries of the journal cannot be applied: {refused[decision.seq]}; use the "
                f"version that wrote it, {contents.header.version}, or start a new pool: pilot up --fresh keeps this"
                " one aside"
            )


def _beginning(contents: Contents, fresh: Callable[[], Coordinator]) -> tuple[Restored, Iterable[Segment]]:
    """Where to begin, and the segments to replay from there."""
    core = fresh()
    restored = Restored(core, Books.beside(core))
    if contents.header.after == 0:
        return restored, [contents.last]
    try:
        state, restored.books = snapshot.read(contents)
    except JournalError as error:
        restored.remarks.append(f"{error}; the whole journal was replayed instead")
        return restored, contents.segments
    restored.core.restore(state)
    return restored, [contents.last]


def _replay(
    restored: Restored, found: Iterable[Segment], without: Collection[int]
) -> tuple[Decision, Exception] | None:
    """The first entry that fails, and how; None: none does."""
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
            except Exception as error:  # whatever it is, every restart would fail on it
                return entry, error
    return None


def _kept(entries: Iterable[Entry], without: Collection[int]) -> Iterator[Entry]:
    return (entry for entry in entries if entry.seq not in without)
