"""The journal: an append-only file of events and decisions. It is the source of truth.

It has one JSON object per line. The first is the header; every other one has ``seq`` (1, 2, …) and ``now_s``, and is
either a decision, ``{"event": …, "commands": […]}``, or a note for people, ``{"note": {…}}``. A crash can cut off the
last line, which then was never acted upon; a reader skips it and says so. Damage anywhere else is an error with the
line number.

A journal is a chain of *segments* of a few megabytes (:mod:`pilot.io.segments`). The header of each has the digests of
the previous segment, of the core's state at that point, and of the snapshot from which a restart continues.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, PilotError, one_line
from pilot.core.events import Event
from pilot.core.version import __version__
from pilot.io import segments
from pilot.io.core_state import state_digest
from pilot.io.files import open_regular
from pilot.io.serialize import command_of, dumps, event_of, loads, plain, same

FORMAT = 2

LAST_S = 1e10
"""No pool is 300 years old."""


class Configured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration with which a pool came up: the settings of core and planner, and the site's fields."""

    settings: dict[str, Any]
    site: dict[str, Any]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: what is needed to read and replay the rest.

    ``settings`` are those of core and planner, ``site`` the site's fields; ``reopened`` has both for each time that the
    pool came up again after a drain. ``started_unix_s`` is the time of day at ``now_s`` = 0. ``version`` is that of the
    code that wrote this segment. ``after`` is the number of earlier entries, the last of them at ``now_s``;
    ``previous``, ``core`` and ``snapshot`` are the digests of the segment that ends with it, of the core's state then,
    and of the snapshot taken then ("": this is the first segment).
    """

    journal: int
    version: str
    coordinator: str
    started_unix_s: float
    settings: dict[str, Any]
    site: dict[str, Any]
    after: int = 0
    now_s: float = 0.0
    previous: str = ""
    core: str = ""
    snapshot: str = ""
    reopened: list[Configured] = []

    @property
    def configured(self) -> list[Configured]:
        """The configurations with which it came up: at first, and after each drain."""
        return [Configured(self.settings, self.site), *self.reopened]


@dataclass(frozen=True, slots=True)
class Decision:
    """An event that entered the core at ``now_s``, and the commands that it returned."""

    seq: int
    now_s: float
    event: Event
    commands: tuple[Command, ...]

    def line(self) -> bytes:
        """Its line in the journal."""
        return _line(self.seq, self.now_s, event=plain(self.event), commands=[plain(c) for c in self.commands])


@dataclass(frozen=True, slots=True)
class JournalNote:
    """Information for people that has no effect on decisions: a restart, a script's remark."""

    seq: int
    now_s: float
    note: dict[str, Any] = field(hash=False)

    def line(self) -> bytes:
        """Its line in the journal."""
        return _line(self.seq, self.now_s, note=self.note)


Entry = Decision | JournalNote


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a journal: ``good_bytes`` is the length of its complete lines; ``warning`` says what was cut off.
    ``last_seq`` is the number of the last complete entry, ``skipped`` says which entries were skipped and why,
    ``digest`` is that of the complete lines.
    """

    header: Header
    entries: list[Entry]
    good_bytes: int
    last_seq: int
    warning: str = ""
    skipped: tuple[str, ...] = ()
    digest: str = ""

    @property
    def decisions(self) -> Iterator[Decision]:
        """The entries that went through the core."""
        return (entry for entry in self.entries if isinstance(entry, Decision))

    @property
    def last_s(self) -> float:
        """``now_s`` of the last entry."""
        return self.entries[-1].now_s if self.entries else self.header.now_s


@dataclass(frozen=True, slots=True)
class Contents:
    """A journal: its ``last`` segment, already read; the others are read on demand."""

    path: Path
    last: Segment
    whole: bool = True

    @property
    def header(self) -> Header:
        """The newest header: it has the pool's name, like all others, and all configurations so far."""
        return self.last.header

    @property
    def last_s(self) -> float:
        """``now_s`` of the last entry; 0 if there is none."""
        return self.last.last_s

    @property
    def segments(self) -> Iterator[Segment]:
        """All segments, each after checking that it is the one named by its successor.

        Raises
        ------
        JournalError
            One is missing or damaged.
        """
        yield from _chain(self.path, itertools.chain(self._closed(), [self.last]))

    @property
    def entries(self) -> Iterator[Entry]:
        """The entries of all segments. Raises like :attr:`segments`."""
        return (entry for segment in self.segments for entry in segment.entries)

    @property
    def decisions(self) -> Iterator[Decision]:
        """The decisions of all segments. Raises like :attr:`segments`."""
        return (decision for segment in self.segments for decision in segment.decisions)

    def _closed(self) -> Iterator[Segment]:
        for path in segments.closed(self.path, self.header.after):
            yield _parsed(path, segments.read_closed(path), whole=self.whole)


def read(path: Path, *, whole: bool = True) -> Contents:
    """Read a journal's last segment; unless it must be ``whole``, damaged entries are skipped.

    Raises
    ------
    JournalError
        There is none, or a line is damaged (the message has its number). An incomplete last line is only skipped.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}") from None
    return Contents(path, _parsed(path, data, whole=whole), whole)


def read_more(path: Path, last: Segment) -> Segment | None:
    """Read the entries added to the journal's ``last`` segment since it was read, without damaged ones. None: a new
    segment has begun.

    Raises
    ------
    JournalError
        The journal has become unreadable.
    """
    try:
        with open_regular(path) as file:
            if _at_line(path, 1, partial(_header, file.readline())) != last.header:
                return None
            file.seek(last.good_bytes)
            data = file.read()
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}") from None
    good = data.rfind(b"\n") + 1
    lines = data[:good].split(b"\n")[:-1]
    entries, skipped = _entries(path, last.last_seq, lines, last.last_seq - last.header.after + 2)
    return Segment(last.header, entries, last.good_bytes + good, last.last_seq + len(lines), skipped=tuple(skipped))


def _parsed(path: Path, data: bytes, *, whole: bool) -> Segment:
    good = data.rfind(b"\n") + 1
    lines = data[:good].split(b"\n")[:-1]
    if not lines:
        raise JournalError(f"{path}:1: the journal has no header; nothing can be restored from it")
    header: Header = _at_line(path, 1, partial(_header, lines[0]))
    entries, skipped = _entries(path, header.after, lines[1:])
    if skipped and whole:
        raise JournalError(skipped[0])
    cut = len(data) - good
    warning = f"{path}:{len(lines) + 1}: skipped the last line, which was cut off after {cut} bytes" if cut else ""
    last_seq = header.after + len(lines) - 1
    return Segment(header, entries, good, last_seq, warning, tuple(skipped), segments.digest(data[:good]))


def _entries(path: Path, after: int, lines: list[bytes], first: int = 2) -> tuple[list[Entry], list[str]]:
    """The entries in ``lines``, which begin at line ``first`` of the file; and what is wrong with the invalid ones."""
    entries: list[Entry] = []
    wrong: list[str] = []
    for place, text in enumerate(lines):
        try:
            entries.append(_at_line(path, first + place, partial(_entry, after + place + 1, text)))
        except JournalError as error:
            wrong.append(str(error))
    return entries, wrong


def _chain(path: Path, found: Iterator[Segment]) -> Iterator[Segment]:
    """Yield from ``found``, checking that it begins with the first segment and that each matches its successor's
    header."""
    known, held = 0, None
    for segment in found:
        if segment.header.after != known:
            raise JournalError(f"{path}: entry {known + 1} of the journal is missing, with its segment")
        if held is not None:
            if segment.header.previous != held.digest:
                raise JournalError(f"{path}: the segment that ends with entry {known} was changed after it was closed")
            yield held
        known, held = segment.last_seq, segment
    if held is not None:
        yield held


def replay(contents: Contents, core: Coordinator, seen: Callable[[Decision], object] = lambda _: None) -> str:
    """Feed the decisions to a fresh ``core``. Returns "" if it gives the same commands and has the same state at the
    beginning of each segment; otherwise the first difference, in words. ``seen`` is called with each decision that is
    the same, because reading a journal takes as long as replaying it."""
    for segment in contents.segments:
        after, expected = segment.header.after, segment.header.core
        if after and segment.header.version == __version__ and state_digest(core) != expected:
            return f"entry {after}: the state after it is not the one that was recorded"
        if difference := _replay_segment(segment, core, seen):
            return difference
    return ""


def _replay_segment(segment: Segment, core: Coordinator, seen: Callable[[Decision], object]) -> str:
    for decision in segment.decisions:
        try:
            commands = core.handle(decision.now_s, decision.event)
        except (PilotError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            return f"entry {decision.seq} ({type(decision.event).__name__}): refused now: {one_line(str(error))}"
        if difference := _difference(decision.commands, commands):
            return f"entry {decision.seq} ({type(decision.event).__name__}): {difference}"
        seen(decision)
    return ""


def _difference(recorded: tuple[Command, ...], given: list[Command]) -> str:
    for number, (a, b) in enumerate(zip(recorded, given, strict=False), 1):
        if not same(a, b):
            return f"command {number} was {dumps(plain(a))}, is now {dumps(plain(b))}"
    if len(recorded) != len(given):
        return f"there were {len(recorded)} commands, there are now {len(given)}"
    return ""


def header_line(header: Header) -> bytes:
    """The journal's first line."""
    return dumps(msgspec.to_builtins(header)).encode() + b"\n"


def _line(seq: int, now_s: float, **content: Any) -> bytes:
    return dumps({"seq": seq, "now_s": now_s, **content}).encode() + b"\n"


def _header(text: bytes) -> Header:
    data = loads(text)
    number = data.get("journal") if isinstance(data, dict) else None
    if number != FORMAT:
        raise JournalError(f"not a journal of format {FORMAT} (its first line says {number})")
    try:
        header = msgspec.convert(data, Header)
    except (msgspec.ValidationError, ValueError) as error:
        raise JournalError(f"damaged header: {error}") from None
    if header.after < 0 or not 0 <= header.now_s < LAST_S:
        raise JournalError("damaged header: no valid start")
    return header


def _entry(seq: int, text: bytes) -> Entry:
    data = loads(text)
    now_s = data.get("now_s") if isinstance(data, dict) else None
    if not isinstance(data, dict) or data.get("seq") != seq or not isinstance(now_s, float | int):
        raise JournalError(f"damaged: entry {seq} was expected")
    if not 0 <= now_s < LAST_S:
        raise JournalError(f"damaged: entry {seq} has no valid time")
    match data:
        case {"event": event, "commands": list(commands)}:
            return Decision(seq, float(now_s), event_of(event), tuple(command_of(c) for c in commands))
        case {"note": dict(note)}:
            return JournalNote(seq, float(now_s), note)
    raise JournalError(f"damaged: entry {seq} is neither a decision nor a note")


def _at_line(path: Path, number: int, parse: Callable[[], Any]) -> Any:
    try:
        return parse()
    except JournalError as error:
        raise JournalError(f"{path}:{number}: {error}") from None
