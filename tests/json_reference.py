"""What ``--json`` prints, from the types behind it: the table in docs/reference/json.md and the pages beside it.

``python -m tests.json_reference`` rewrites them; ``tests/unit/test_docs.py`` fails when that is due.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
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
FOLDER = DOCUMENT.with_suffix("")
GENERATED = "<!-- Written by python -m tests.json_reference. -->"
BEGIN = "<!-- From here on this file is written by python -m tests.json_reference. -->\n"

PAGES: dict[str, dict[str, type]] = {
    "status": {"up": PoolStatus, "status": PoolStatus},
    "trainers": {
        "ls": TrainerList,
        "status NAME": TrainerHistory,
        "submit": Submitted,
        "wait": Phases,
        "cancel": TrainerPhase,
        "hold": TrainerPhase,
        "release": TrainerPhase,
        "resume": TrainerPhase,
        "rm": Removed,
        "explain": Explained,
    },
    "pools": {
        "pools": PoolList,
        "events": PoolEvent,
        "ledger": LedgerProof,
        "scale": Scaled,
        "down": Draining,
        "demo": DemoAnswer,
    },
    "studies": {
        "study run": StudyStatus,
        "study status": StudyList,
        "study trials": TrialList,
        "study export": TrialList,
        "study best": TrialStatus,
        "study stop": StudyStatus,
        "study resume": StudyStatus,
        "study add": StudyStatus,
    },
    "sites": {"doctor": Findings, "sites": SiteList, "sites show": SiteShown, "sites check": SiteChecked},
    "checkpoints": {
        "checkpoint ls": CheckpointList,
        "checkpoint verify": VerifiedList,
        "checkpoint show": CheckpointShown,
    },
    "research": {"replay": ReplayList, "trace stats": TracesAnswer, "trace synth": TracesAnswer},
}
"""Page below docs/reference/json → its commands → what each prints."""

_WORDS = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null", Any: "anything"}
_FIELD = re.compile(r" {4}(\w+):")


def table_of_commands() -> str:
    """Every command with the type that it prints."""
    rows = [
        f"| `pilot {command}` | [{kind.__name__}](json/{_homes()[kind]}.md#{kind.__name__.lower()}) |"
        for commands in PAGES.values()
        for command, kind in commands.items()
    ]
    return "\n".join(["## Commands", "", "| command | prints |", "|---|---|", *rows]) + "\n"


def reference(page: str) -> str:
    """A page: what its commands print, with one table of fields per type that no earlier page has."""
    about = "What holds for all commands is in [What `--json` prints](../json.md)."
    rows = [f"| `pilot {command}` | {_link(kind, page)} |" for command, kind in PAGES[page].items()]
    kinds = [kind for kind, home in _homes().items() if home == page]
    tables = [line for kind in kinds for line in _section(kind, page)]
    head = [f"# JSON: {page}", "", about, "", "| command | prints |", "|---|---|", *rows]
    return "\n".join([GENERATED, *head, *tables]) + "\n"


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


def _section(kind: type, page: str) -> Iterator[str]:
    summary = (kind.__doc__ or "").partition("\n\n")[0].replace("``", "`")
    yield from ("", f"## {kind.__name__}", "", " ".join(summary.split()))
    yield from ("", "| field | type | meaning |", "|---|---|---|")
    for name, (hint, meaning) in fields(kind).items():
        yield f"| `{name}` | {_shown(hint, page)} | {meaning} |"


def _shown(hint: Any, page: str) -> str:
    """A type in JSON's terms."""
    if isinstance(hint, NewType):
        return _shown(hint.__supertype__, page)
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_shown(part, page) for part in get_args(hint))
    if get_origin(hint) is dict:
        key, value = get_args(hint)
        by = "name" if key is str else "integer, which JSON writes as a string"
        return f"object: {_shown(value, page)} by {by}"
    if get_origin(hint) in (list, tuple):
        return f"array of {_shown(get_args(hint)[0], page)}"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return ", ".join(f"`{value}`" for value in hint)
    return _WORDS.get(hint) or _link(hint, page)


def _link(kind: type, page: str) -> str:
    home = _homes()[kind]
    return f"[{kind.__name__}]({'' if home == page else f'{home}.md'}#{kind.__name__.lower()})"


@cache
def _homes() -> dict[type, str]:
    """Each type and the first page that needs it: the commands' types, each followed by those that it contains."""
    homes: dict[type, str] = {}
    for page, commands in PAGES.items():
        waiting = list(commands.values())
        while waiting:
            kind = waiting.pop(0)
            if kind not in homes:
                homes[kind] = page
                waiting[:0] = [held for hint, _ in fields(kind).values() for held in _held(hint)]
    return homes


def _held(hint: Any) -> list[type]:
    if get_args(hint):
        return [held for part in get_args(hint) for held in _held(part)]
    return [hint] if dataclasses.is_dataclass(hint) or isinstance(hint, msgspec.StructMeta) else []


def written() -> dict[Path, str]:
    """The documents with up-to-date tables."""
    begun = DOCUMENT.read_text().partition(BEGIN)[0] + BEGIN + "\n" + table_of_commands()
    return {DOCUMENT: begun} | {FOLDER / f"{page}.md": reference(page) for page in PAGES}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for document, text in written().items():
        document.write_text(text)
