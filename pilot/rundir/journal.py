"""The journal: an append-only file of events and decisions. It is the source of truth.

It has one JSON object per line (:mod:`pilot.rundir.entries`). The first is the header; every other one is an entry,
with its number ``seq`` (1, 2, …) and ``now_s``: either a decision, ``{"event": …, "commands": […]}``, or a note for
people, ``{"note": {…}}``. A crash can cut off the last line, which then was never acted upon. Damage costs only the
entries that it hits: the intact ones are read, in order, and missing ones are reported.

A journal is a chain of *segments* of a few megabytes (:mod:`pilot.rundir.segments`). The header of each has the
digests of the previous segment, of the core's state at that point, and of the snapshot from which a restart continues.
If the header itself is damaged, its copy in another file is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError, PilotError, one_line
from pilot.core.version import __version__
from pilot.host.files import open_regular
from pilot.rundir import segments
from pilot.rundir.entries import (
    LAST_S,
    Decision,
    Entry,
    Intact,
    dumps,
    loads,
    may_begin,
    plain,
    same,
    scan,
    sealed,
    unsealed,
)
from pilot.rundir.segments import state_digest

FORMAT = 7


class Configured(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pool's configuration: the settings of core and planner, and the site's fields."""

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
        """The configurations at its beginning, and after each drain."""
        return [Configured(self.settings, self.site), *self.reopened]


@dataclass(slots=True)
class Segment(Intact):
    """One file of a journal, with its intact entries."""

    header: Header = field(kw_only=True)
    good_bytes: int = field(kw_only=True)  #: length of its complete lines
    digest: str = field(default="", kw_only=True)  #: of its complete lines; "": not all of them were read

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
    """A journal with its ``last`` segment; the others are read on demand."""

    path: Path
    last: Segment

    @property
    def header(self) -> Header:
        """The newest header; it has all configurations so far."""
        return self.last.header

    @property
    def last_s(self) -> float:
        """``now_s`` of the last entry; 0 if there is none."""
        return self.last.last_s

    @property
    def segments(self) -> Iterator[Segment]:
        """All segments, as far as they are readable.

        Raises
        ------
        JournalError
            One cannot be read now, though it may be intact.
        """
        closed = segments.closed(self.path, self.header.after)
        ends = [*(segments.after(path) for path in closed[1:]), self.header.after]
        known, digest = 0, ""
        for path, end in zip(closed, ends, strict=False):
            segment = _followed(self._read_closed(path, known, end), digest)
            known, digest = end, "" if segment.missing or segment.odd else segment.digest
            yield segment
        yield _followed(self.last, digest) if known == self.header.after else self._without_others()

    @property
    def entries(self) -> Iterator[Entry]:
        """The entries of all segments. Raises like :attr:`segments`."""
        return (entry for segment in self.segments for entry in segment.entries)

    @property
    def decisions(self) -> Iterator[Decision]:
        """The decisions of all segments. Raises like :attr:`segments`."""
        return (decision for segment in self.segments for decision in segment.decisions)

    def _read_closed(self, path: Path, known: int, end: int) -> Segment:
        """Return a closed segment, with the entries after ``known`` up to ``end``."""
        data, wrong = segments.read_closed(path)
        other = msgspec.structs.replace(
            self.header, after=segments.after(path), now_s=0.0, version="", previous="", core="", snapshot=""
        )
        segment = _parsed(path, data, lambda: other, known, end)
        segment.odd += [wrong] if wrong else []
        return segment

    def _without_others(self) -> Segment:
        """Return the last segment, with a note that all the others are missing."""
        lost = Intact([], 0)
        lost.lack(self.header.after, self.header.now_s, f"there is none in {segments.folder(self.path)}")
        return replace(
            self.last, entries=[*lost.entries, *self.last.entries], missing=[*lost.missing, *self.last.missing]
        )


def read(path: Path) -> Contents:
    """Read a journal's last segment, as far as it is readable.

    Raises
    ------
    JournalError
        There is none, it cannot be read now, or nothing can be restored from it: it has another format, or its header
        is lost.
    """
    with _opened(path) as file:
        return Contents(path, _parsed(path, file.read(), partial(_copied_header, path)))


def read_more(path: Path, last: Segment) -> Segment | None:
    """Read the entries added to the journal's ``last`` segment since it was read. None: a new segment has begun.

    Raises
    ------
    JournalError
        The journal has become unreadable.
    """
    with _opened(path) as file:
        head = file.readline()
        file.seek(last.good_bytes)
        data = head + file.read()
    complete = data[: data.rfind(b"\n") + 1]  # the next line is perhaps being written
    more = _parsed(path, complete, partial(_copied_header, path), last.last_seq)
    if more.header != last.header:
        return None
    return replace(more, good_bytes=last.good_bytes + more.good_bytes - len(head), digest="")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with open_regular(path) as file:
            yield file
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}") from None


def _parsed(
    path: Path, data: bytes, other: Callable[[], Header], known: int | None = None, end: int | None = None
) -> Segment:
    """Return the segment in ``path``, with the ``other`` header if its own is damaged. It should have the entries after
    ``known`` (None: as in its header) up to ``end`` (None: it is the last segment)."""
    good = data.rfind(b"\n") + 1
    lines = data[:good].split(b"\n")[:-1]
    header, odd = _header_or(path, lines[0] if lines else b"", other)
    first = 1 if odd else 2  # without the header's line, the first one may be an entry
    if cut := data[good:]:
        odd.append(f"{path}:{len(lines) + 1}: skipped the last line, which was cut off after {len(cut)} bytes")
        lines += [] if may_begin(cut) else [cut]
    after, digest = header.after if known is None else known, segments.digest(data[:good])
    segment = Segment([], after, odd=odd, header=header, good_bytes=good, digest=digest)
    scan(segment, path, lines[first - 1 :], first, header.now_s, end)
    return segment


def _followed(segment: Segment, previous: str) -> Segment:
    """Return the segment, with a remark if the one before it does not have the digest in its header."""
    if "" in (previous, segment.header.previous) or segment.header.previous == previous:
        return segment
    odd = f"the segment that ends with entry {segment.header.after} of the journal was changed after it was closed"
    return replace(segment, odd=[*segment.odd, odd])


def replay(contents: Contents, core: Coordinator, seen: Callable[[Decision], object] = lambda _: None) -> str:
    """Feed the decisions to a fresh ``core``. Returns the first difference to the recorded commands, or to the state at
    a segment's beginning, in words, or that entries are missing; "" if there is none. ``seen`` is called with each
    equal decision, because reading a journal takes as long as replaying it."""
    for segment in contents.segments:
        if segment.missing:
            return segment.missing[0]
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
    """Return the journal's first line."""
    return sealed(msgspec.to_builtins(header))


def _header_or(path: Path, text: bytes, other: Callable[[], Header]) -> tuple[Header, list[str]]:
    """Return the header in the line ``text``, or else the ``other`` one with a remark."""
    try:
        return _header(text), []
    except JournalError as error:
        own = f"{path}:1: {error}"
    try:
        return other(), [f"{own}; other files were used instead"]
    except JournalError:
        raise JournalError(own) from None


def _copied_header(path: Path) -> Header:
    return _header(segments.read_header(path))


def _header(text: bytes) -> Header:
    """Return the header in a line without its end."""
    try:
        data = unsealed(text)
    except JournalError:
        raise JournalError(_no_header(text)) from None
    if not isinstance(data, dict) or data.get("journal") != FORMAT:
        raise JournalError(_no_header(text))
    try:
        header = msgspec.convert(data, Header)
    except (msgspec.ValidationError, ValueError) as error:
        raise JournalError(f"damaged header: {error}") from None
    if header.after < 0 or not 0 <= header.now_s < LAST_S:
        raise JournalError("damaged header: no valid start")
    return header


def _no_header(text: bytes) -> str:
    """Return why the line ``text`` is not a header."""
    if not text:
        return "the journal has no header"
    try:
        data = loads(text)
    except JournalError as error:
        return f"damaged header: {error}"
    number = data.get("journal") if isinstance(data, dict) else None
    if number == FORMAT:
        return "damaged header"
    return f"not a journal of format {FORMAT} (its first line says {number}); the version that wrote it can read it"
