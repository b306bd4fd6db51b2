"""A snapshot: everything that a coordinator knows from its journal, so that a restart need not read all of it. It can
be recreated by replaying the journal, so losing one loses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, PilotError
from pilot.core.events import Event, PoolChanged
from pilot.core.ids import NodeId
from pilot.core.state import State
from pilot.core.version import __version__
from pilot.io import segments
from pilot.io.journal import Contents
from pilot.observation.monitor import Monitor
from pilot.service.pending import PendingCommands

LOST_KEPT = 10_000
"""How many lost nodes to remember; an agent that comes back after that many others is treated as a stranger."""


@dataclass(slots=True)
class Books:
    """What is kept beside the core, derived from the same events and notes; plain data. ``lost`` has the reasons why
    nodes were lost, ``scaled`` how many pilots to keep since ``pilot scale`` (None: as many as the trainers can
    use)."""

    pending: PendingCommands = field(default_factory=PendingCommands)
    monitor: Monitor = field(default_factory=Monitor)
    lost: dict[NodeId, str] = field(default_factory=dict)
    scaled: tuple[int | None] | None = None

    @classmethod
    def beside(cls, core: Coordinator) -> Books:
        """The initial books for a fresh ``core``."""
        return cls(monitor=Monitor(ended_kept=core.config.ended_kept))

    def note(self, now_s: float, event: Event, commands: Sequence[Command]) -> None:
        """The core returned ``commands`` for ``event``."""
        self.pending.note(now_s, event, commands)
        self.monitor.note(now_s, event, commands)
        if isinstance(event, PoolChanged):
            for node in event.lost:
                remember_lost(self.lost, node, event.cause)

    def remark(self, now_s: float, note: Mapping[str, str | float | None]) -> None:
        """Process a note of the journal."""
        if "pilots" in note:
            kept = note["pilots"]
            self.scaled = (kept if isinstance(kept, int) else None,)
        else:
            self.monitor.remark(now_s, note)


class Snapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file. ``core`` is the canonical form of its state after the first ``after`` entries."""

    version: str
    after: int
    core: msgspec.Raw
    books: Books


def taken(core: Coordinator, books: Books, after: int) -> tuple[str, bytes]:
    """The digest of the core's state, and the snapshot."""
    state = segments.state_bytes(core)
    return segments.digest(state), msgspec.msgpack.encode(Snapshot(__version__, after, msgspec.Raw(state), books))


def read(contents: Contents) -> tuple[State, Books]:
    """What was known at the beginning of the journal's last segment.

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
