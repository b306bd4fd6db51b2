"""The lines of a journal: each has a number and a checksum, so that damage costs only the entries that it hits.

That is why the journal is not a database: on a shared file system, one damaged page of SQLite can cost all of it.

A line is a JSON object. ``crc``, its first member, is the CRC-32 of the bytes that follow it. ``seq`` (1, 2, …) is the
entry's number in the complete journal: it identifies the event. So a reader needs neither the position of a line nor
the lines before it. Blocks of a file that are zeroed, dropped, doubled or moved leave broken lines, gaps in the numbers
and repeated numbers; all other entries are read, in order.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import msgspec

from pilot.core.commands import Command
from pilot.core.errors import JournalError, PilotError
from pilot.core.events import Event
from pilot.core.ids import Generation, TrainerId

LAST_S = 1e10
"""No pool is 300 years old."""

NUMBER_MAX = 10**15
"""Entries and generations have smaller numbers."""

_SEAL = b'{"crc":"%08x",'
_AFTER_SEAL = len(_SEAL % 0)


@dataclass(frozen=True, slots=True)
class Decision:
    """An event that entered the core at ``now_s``, and the commands that it returned."""

    seq: int
    now_s: float
    event: Event
    commands: tuple[Command, ...]

    def line(self) -> bytes:
        """Return its line in the journal."""
        commands = [plain(c) for c in self.commands]
        return sealed({"seq": self.seq, "now_s": self.now_s, "event": plain(self.event), "commands": commands})


@dataclass(frozen=True, slots=True)
class JournalNote:
    """Information for people, without effect on decisions: a restart, a script's remark."""

    seq: int
    now_s: float
    note: dict[str, Any] = field(hash=False)

    def line(self) -> bytes:
        """Return its line in the journal."""
        return sealed({"seq": self.seq, "now_s": self.now_s, "note": self.note})


Entry = Decision | JournalNote

Flaw = tuple[int, str]
"""The number of a line, and what is wrong with it."""


@dataclass(slots=True)
class Intact:
    """The intact entries of some lines, in order; in the place of missing entries, there is a note."""

    entries: list[Entry]
    last_seq: int  #: number of the last intact entry
    missing: list[str] = field(default_factory=list)  #: which entries are missing, and why
    odd: list[str] = field(default_factory=list)  #: damage by which nothing was lost
    #: the highest generation of each trainer in any intact line, also in one that is not a valid entry
    generations: dict[TrainerId, Generation] = field(default_factory=dict)

    def lack(self, upto: int, now_s: float, why: str) -> None:
        """Record that the entries after the last one, up to entry ``upto``, are missing."""
        first = self.last_seq + 1
        which = f"entry {first} of the journal is" if first == upto else f"entries {first} to {upto} of the journal are"
        self.note(now_s, f"{which} missing: {why}")

    def note(self, now_s: float, text: str) -> None:
        """Record ``text``: that entries are missing."""
        self.missing.append(text)
        self.entries.append(JournalNote(self.last_seq, now_s, {"text": text}))


def sealed(data: dict[str, Any]) -> bytes:
    """Return the line with ``data``."""
    rest = dumps(data).encode()[1:]
    return _SEAL % zlib.crc32(rest) + rest + b"\n"


def unsealed(line: bytes) -> Any:
    """Return the data of a line without its end; :class:`JournalError` if its checksum is not that of its content."""
    rest = line[_AFTER_SEAL:]
    if not line.startswith(_SEAL % zlib.crc32(rest)):
        raise JournalError("damaged")
    return loads(b"{" + rest)


def may_begin(text: bytes) -> bool:
    """Return whether ``text`` may be the beginning of a line, as a crash leaves it; otherwise it is damage."""
    start = _SEAL[: _SEAL.index(b"%")]
    return b"\0" not in text and (text.startswith(start) or start.startswith(text))


def scan(into: Intact, path: Path, lines: Iterable[bytes], first: int, now_s: float, upto: int | None = None) -> None:
    """Read ``lines`` of the file ``path``, from its line number ``first`` on. They should have the entries that follow
    the last one, which is of ``now_s``, up to entry ``upto`` (None: unknown)."""
    after = into.last_seq
    found, flaws, repeated = _found(lines, first, after, into.generations)
    for seq in sorted(seq for seq in found if after < seq <= (upto or seq)):
        if seq > into.last_seq + 1:
            into.lack(seq - 1, now_s, _place(path, flaws.pop(into.last_seq, None)))
        into.entries.append(found[seq])
        into.last_seq, now_s = seq, found[seq].now_s
    flaw = flaws.pop(into.last_seq, None)
    if upto is not None and into.last_seq < upto:
        into.lack(upto, now_s, _place(path, flaw) if flaw else f"{path} ends before")
    elif upto is None and flaw is not None:
        into.note(now_s, f"what follows entry {into.last_seq} of the journal is missing: {_place(path, flaw)}")
    into.odd += [f"{_place(path, flaw)}; no entry is missing there" for flaw in flaws.values()]
    into.odd += [f"{path}: some lines repeat others"] if repeated else []


def _found(
    lines: Iterable[bytes], first: int, after: int, generations: dict[TrainerId, Generation]
) -> tuple[dict[int, Entry], dict[int, Flaw], bool]:
    """Return the intact entries by number, the first flaw after each, and whether any is repeated; and update
    ``generations``."""
    found: dict[int, Entry] = {}
    flaws: dict[int, Flaw] = {}
    previous, repeated = after, False
    for number, text in enumerate(lines, first):
        try:
            data = unsealed(text)
            _note_generations(data, generations)
            entry = _entry(data)
        except JournalError as error:
            flaws.setdefault(previous, (number, str(error)))
            continue
        repeated = repeated or entry.seq <= after or entry.seq in found
        previous = found.setdefault(entry.seq, entry).seq
    return found, flaws, repeated


def _place(path: Path, flaw: Flaw | None) -> str:
    return f"{path}:{flaw[0]}: {flaw[1]}" if flaw is not None else str(path)


def _note_generations(data: Any, generations: dict[TrainerId, Generation]) -> None:
    """Note the generations in an event and its commands, even if they cannot be decoded."""
    if not isinstance(data, dict):
        return
    commands = data.get("commands")
    for item in (data.get("event"), *(commands if isinstance(commands, list) else ())):
        if not isinstance(item, dict):
            continue
        trainer, generation = item.get("trainer"), item.get("generation")
        if isinstance(trainer, str) and isinstance(generation, int) and 0 < generation < NUMBER_MAX:
            name = TrainerId(trainer)
            generations[name] = max(Generation(generation), generations.get(name, Generation(0)))


def _entry(data: Any) -> Entry:
    seq, now_s = (data.get("seq"), data.get("now_s")) if isinstance(data, dict) else (None, None)
    if not isinstance(seq, int) or not 0 < seq < NUMBER_MAX:
        raise JournalError("damaged: an entry without a number")
    if not isinstance(now_s, float | int) or not 0 <= now_s < LAST_S:
        raise JournalError(f"damaged: entry {seq} has no valid time")
    match data:
        case {"event": event, "commands": list(commands)}:
            return Decision(seq, float(now_s), event_of(event), tuple(command_of(c) for c in commands))
        case {"note": dict(note)}:
            return JournalNote(seq, float(now_s), note)
    raise JournalError(f"damaged: entry {seq} is neither a decision nor a note")


T = TypeVar("T")


class FromPlain(Generic[T]):
    """Decodes plain data into objects of the classes in ``union``; :class:`JournalError` if that fails."""

    def __init__(self, union: Any) -> None:
        self._kinds = {kind.__name__: (kind, frozenset(f.name for f in fields(kind))) for kind in get_args(union)}

    def knows(self, data: dict[str, Any]) -> bool:
        """Return whether ``data`` names one of the classes."""
        return isinstance(data.get("type"), str) and data["type"] in self._kinds

    def __call__(self, data: Any) -> T:
        """See the class."""
        if not isinstance(data, dict) or not self.knows(data):
            raise JournalError(f"not one of {', '.join(self._kinds)}: {str(data)[:80]}")
        kind, names = self._kinds[data["type"]]
        given = {name: value for name, value in data.items() if name != "type"}
        if unknown := given.keys() - names:
            raise JournalError(f"{kind.__name__} has no field {min(unknown)}")
        try:
            found: T = msgspec.convert(given, kind)
        except (ValueError, OverflowError, RecursionError, PilotError) as error:
            raise JournalError(f"{kind.__name__}: {error}") from None
        return found


event_of = FromPlain[Event](Event)
command_of = FromPlain[Command](Command)


def plain(value: Event | Command) -> dict[str, Any]:
    """Return an event or command as dicts, lists, strings and numbers."""
    return {"type": type(value).__name__, **msgspec.to_builtins(value)}


def dumps(data: Any) -> str:
    """Return ``data`` as JSON on one line."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def loads(text: str | bytes) -> Any:
    """Parse JSON; :class:`JournalError` if ``text`` is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"not JSON: {error}") from None


def same(a: Event | Command, b: Event | Command) -> bool:
    """Return whether two are equal, where NaN equals itself."""
    return a == b or (type(a) is type(b) and dumps(plain(a)) == dumps(plain(b)))
