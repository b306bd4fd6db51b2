"""The journal: an append-only file of what happened and what was decided. It is the truth.

One JSON object per line. The first is the header; each other one has ``seq`` (1, 2, …) and ``now_s``, and is either a
decision, ``{"event": …, "commands": […]}``, or a note for people, ``{"note": {…}}``. A crash can cut off the last line,
which then was never acted upon; a reader leaves it out and says so. Damage anywhere else is refused with its line
number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from pilot.core.commands import Command
from pilot.core.errors import JournalError, PilotError, one_line
from pilot.core.events import Event
from pilot.io.files import open_regular
from pilot.io.serialize import command_of, dumps, event_of, loads, plain, same

FORMAT = 1

LAST_S = 1e10
"""No pool is 300 years old."""

Handle = Callable[[float, Event], list[Command]]
"""``Coordinator.handle`` of a fresh coordinator."""


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line: what one needs to know to read and to replay the rest.

    ``settings`` are what the core and the planner were started with, ``site`` the site's fields. ``started_unix_s`` is
    the time of day at ``now_s`` = 0.
    """

    journal: int
    version: str
    coordinator: str
    started_unix_s: float
    settings: dict[str, Any]
    site: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decision:
    """What the core was told at ``now_s``, and what it answered."""

    seq: int
    now_s: float
    event: Event
    commands: tuple[Command, ...]

    def line(self) -> bytes:
        """Its line in the journal."""
        return _line(self.seq, self.now_s, event=plain(self.event), commands=[plain(c) for c in self.commands])


@dataclass(frozen=True, slots=True)
class JournalNote:
    """Something for people that decides nothing: a restart, a remark of a script."""

    seq: int
    now_s: float
    note: dict[str, Any] = field(hash=False)

    def line(self) -> bytes:
        """Its line in the journal."""
        return _line(self.seq, self.now_s, note=self.note)


Entry = Decision | JournalNote


@dataclass(frozen=True, slots=True)
class Contents:
    """A journal that was read: ``good_bytes`` of the file are whole lines; ``warning`` tells what was cut off.

    ``last_seq`` is the number of the last whole line's entry, ``skipped`` tells which entries were left out and why.
    """

    header: Header
    entries: list[Entry]
    good_bytes: int
    last_seq: int
    warning: str = ""
    skipped: tuple[str, ...] = ()

    @property
    def decisions(self) -> Iterator[Decision]:
        """The entries that the core has seen."""
        return (entry for entry in self.entries if isinstance(entry, Decision))

    @property
    def last_s(self) -> float:
        """``now_s`` of the last entry, 0 where there is none."""
        return self.entries[-1].now_s if self.entries else 0.0


def read(path: Path, *, whole: bool = True) -> Contents:
    """Read the whole journal; where it need not be ``whole``, without the entries that are damaged.

    Raises
    ------
    JournalError
        There is none, or a line is damaged (its number is told). A last line without its end is left out instead.
    """
    try:
        with open_regular(path) as file:
            data = file.read()
    except OSError as error:
        raise JournalError(f"cannot read the journal {path}: {error.strerror}") from None
    good = data.rfind(b"\n") + 1
    lines = data[:good].split(b"\n")[:-1]
    if not lines:
        raise JournalError(f"{path}:1: the journal has no header; nothing can be restored from it")
    header: Header = _at_line(path, 1, partial(_header, lines[0]))
    entries, skipped = _entries(path, lines[1:])
    if skipped and whole:
        raise JournalError(skipped[0])
    cut = len(data) - good
    warning = f"{path}:{len(lines) + 1}: left out a last line that was cut off after {cut} bytes" if cut else ""
    return Contents(header, entries, good, len(lines) - 1, warning, tuple(skipped))


def _entries(path: Path, lines: list[bytes]) -> tuple[list[Entry], list[str]]:
    """The entries, and what is wrong with those lines that are none."""
    entries: list[Entry] = []
    wrong: list[str] = []
    for number, text in enumerate(lines, 2):
        try:
            entries.append(_at_line(path, number, partial(_entry, number - 1, text)))
        except JournalError as error:
            wrong.append(str(error))
    return entries, wrong


def replay(contents: Contents, handle: Handle) -> str:
    """Feed the decisions to a fresh core; "" where it gives the same commands, else the first difference, in words."""
    for decision in contents.decisions:
        try:
            commands = handle(decision.now_s, decision.event)
        except (PilotError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            return f"entry {decision.seq} ({type(decision.event).__name__}): refused now: {one_line(str(error))}"
        if difference := _difference(decision.commands, commands):
            return f"entry {decision.seq} ({type(decision.event).__name__}): {difference}"
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
        return msgspec.convert(data, Header)
    except msgspec.ValidationError as error:
        raise JournalError(f"damaged header: {error}") from None


def _entry(seq: int, text: bytes) -> Entry:
    data = loads(text)
    now_s = data.get("now_s") if isinstance(data, dict) else None
    if not isinstance(data, dict) or data.get("seq") != seq or not isinstance(now_s, float | int):
        raise JournalError(f"damaged: entry {seq} was expected")
    if not 0 <= now_s < LAST_S:
        raise JournalError(f"damaged: entry {seq} is of no time")
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
