"""The generated part of docs/reference/json.md: what ``--json`` prints, from the types behind it.

``python -m tests.json_reference`` rewrites it; ``tests/unit/test_docs.py`` fails when that is due.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import msgspec

from pilot.cli.checkpoint import CheckpointList, CheckpointShown, VerifiedList
from pilot.cli.demo.report import DemoAnswer
from pilot.cli.sites import SiteChecked, SiteList, SiteShown
from pilot.cli.views import PoolList
from pilot.doctor.finding import Findings
from pilot.history.ledger import LedgerProof
from pilot.history.story import PoolEvent
from pilot.protocol.pool_status import PoolStatus, TrainerHistory
from pilot.protocol.requests import (
    Draining,
    Explained,
    Phases,
    Removed,
    Scaled,
    StudyList,
    StudyStatus,
    Submitted,
    TrainerList,
    TrainerPhase,
    TrialList,
    TrialStatus,
)
from pilot.research.sim.sweep import ReplayList
from pilot.research.traces.statistics import TracesAnswer

DOCUMENT = Path(__file__).parents[1] / "docs" / "reference" / "json.md"
BEGIN = "<!-- From here on this file is written by python -m tests.json_reference. -->\n"

COMMANDS: dict[str, type] = {
    "up": PoolStatus,
    "status": PoolStatus,
    "status NAME": TrainerHistory,
    "ls": TrainerList,
    "pools": PoolList,
    "submit": Submitted,
    "wait": Phases,
    "events": PoolEvent,
    "ledger": LedgerProof,
    "cancel": TrainerPhase,
    "scale": Scaled,
    "study run": StudyStatus,
    "study status": StudyList,
    "study trials": TrialList,
    "study export": TrialList,
    "study best": TrialStatus,
    "study stop": StudyStatus,
    "study resume": StudyStatus,
    "study add": StudyStatus,
    "resume": TrainerPhase,
    "hold": TrainerPhase,
    "release": TrainerPhase,
    "rm": Removed,
    "explain": Explained,
    "down": Draining,
    "demo": DemoAnswer,
    "doctor": Findings,
    "sites": SiteList,
    "sites show": SiteShown,
    "sites check": SiteChecked,
    "checkpoint ls": CheckpointList,
    "checkpoint verify": VerifiedList,
    "checkpoint show": CheckpointShown,
    "replay": ReplayList,
    "trace stats": TracesAnswer,
    "trace synth": TracesAnswer,
}

_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null", Any: "anything"}
_FIELD = re.compile(r" {4}(\w+):")


def reference() -> str:
    """One table of commands, and one table of fields per type."""
    rows = [f"| `pilot {command}` | {_link(kind)} |" for command, kind in COMMANDS.items()]
    commands = ["## Commands", "", "| command | prints |", "|---|---|", *rows]
    return "\n".join([*commands, *(line for kind in _all_types() for line in _section(kind))]) + "\n"


def fields(kind: type) -> dict[str, tuple[Any, str]]:
    """Field → type and meaning; fails if one has no comment."""
    meanings = dict(_meanings(kind))
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in _names(kind)}
    assert all(meanings[name] for name in hints), f"{kind.__name__}: {meanings}"
    return {name: (hint, meanings[name]) for name, hint in hints.items()}


def _names(kind: type) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return tuple(field.name for field in msgspec.structs.fields(kind))


def _meanings(kind: type) -> Iterator[tuple[str, str]]:
    """What the comments ``#:`` say about each field: those in the lines above it, or after it."""
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        code, _, comment = line.partition("#: ")
        if found := _FIELD.match(code):
            yield found[1], " ".join(filter(None, [*above, comment]))
        above = [] if code.strip() else [*above, comment]


def _section(kind: type) -> Iterator[str]:
    summary = (kind.__doc__ or "").partition("\n\n")[0].replace("``", "`")
    yield from ("", f"## {kind.__name__}", "", " ".join(summary.split()))
    yield from ("", "| field | type | meaning |", "|---|---|---|")
    for name, (hint, meaning) in fields(kind).items():
        yield f"| `{name}` | {_shown(hint)} | {meaning} |"


def _shown(hint: Any) -> str:
    """A type in JSON's terms."""
    if isinstance(hint, NewType):
        return _shown(hint.__supertype__)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(map(_shown, get_args(hint)))
    if get_origin(hint) is dict:
        return f"object: {_shown(get_args(hint)[1])} by name" if get_args(hint)[0] is str else _by_number(hint)
    if get_origin(hint) in (list, tuple):
        return f"array of {_shown(get_args(hint)[0])}"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return ", ".join(f"`{value}`" for value in hint)
    return _WORDS.get(hint) or _link(hint)


def _by_number(hint: Any) -> str:
    return f"object: {_shown(get_args(hint)[1])} by integer, which JSON writes as a string"


def _link(kind: type) -> str:
    return f"[{kind.__name__}](#{kind.__name__.lower()})"


def _all_types() -> list[type]:
    """The commands' types, each followed by those that it contains and that have not come before."""
    found: list[type] = []
    waiting = list(COMMANDS.values())
    while waiting:
        kind = waiting.pop(0)
        if kind not in found:
            found.append(kind)
            waiting[:0] = [held for hint, _ in fields(kind).values() for held in _held(hint)]
    return found


def _held(hint: Any) -> list[type]:
    if get_args(hint):
        return [held for part in get_args(hint) for held in _held(part)]
    return [hint] if dataclasses.is_dataclass(hint) or isinstance(hint, msgspec.StructMeta) else []


def written() -> str:
    """The complete document, up to date."""
    return DOCUMENT.read_text().partition(BEGIN)[0] + BEGIN + "\n" + reference()


if __name__ == "__main__":
    DOCUMENT.write_text(written())
