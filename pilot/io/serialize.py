"""Events and commands as readable JSON, without loss.

One object is ``{"type": <class name>, <fields>}``. Floats are restored bit by bit. NaN and infinities (such as the loss
of a training that diverged) are written as ``NaN`` and ``Infinity``, as Python reads them.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, get_args

import msgspec

from pilot.core.commands import Command
from pilot.core.errors import JournalError, PilotError
from pilot.core.events import Event

_Kinds = dict[str, tuple[Any, frozenset[str]]]
"""Class name → class and the names of its fields."""


def _kinds(union: Any) -> _Kinds:
    return {kind.__name__: (kind, frozenset(field.name for field in fields(kind))) for kind in get_args(union)}


_EVENTS = _kinds(Event)
_COMMANDS = _kinds(Command)


def plain(value: Event | Command) -> dict[str, Any]:
    """An event or command as dicts, lists, strings and numbers."""
    return {"type": type(value).__name__, **msgspec.to_builtins(value)}


def event_of(data: Any) -> Event:
    """The event with the plain form ``data``; :class:`JournalError` if there is none."""
    event: Event = _convert(_EVENTS, data)
    return event


def command_of(data: Any) -> Command:
    """The command with the plain form ``data``; :class:`JournalError` if there is none."""
    command: Command = _convert(_COMMANDS, data)
    return command


def dumps(data: Any) -> str:
    """``data`` on one line."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def loads(text: str | bytes) -> Any:
    """The inverse of :func:`dumps`; :class:`JournalError` if ``text`` is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JournalError(f"not JSON: {error}") from None


def same(a: Event | Command, b: Event | Command) -> bool:
    """Equality, where NaN equals itself."""
    return a == b or (type(a) is type(b) and dumps(plain(a)) == dumps(plain(b)))


def _convert(kinds: _Kinds, data: Any) -> Any:
    name = data.get("type") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise JournalError(f"not one of {', '.join(kinds)}: {str(data)[:80]}")
    kind, names = kinds[name]
    given = {name: value for name, value in data.items() if name != "type"}
    if unknown := given.keys() - names:
        raise JournalError(f"{kind.__name__} has no field {min(unknown)}")
    try:
        return msgspec.convert(given, kind)
    except (ValueError, OverflowError, RecursionError, PilotError) as error:
        raise JournalError(f"{kind.__name__}: {error}") from None
