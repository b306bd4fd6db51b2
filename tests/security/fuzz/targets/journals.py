"""Journals: ``pilot replay --journal`` reads one and runs nothing that it names."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path

from pilot.cli.main import run
from pilot.core.events import PoolChanged, TrainerSubmitted
from pilot.core.ids import NodeId, TrainerId
from pilot.core.spec import TrainerSpec
from pilot.io.journal import FORMAT, Contents, Decision, Header, header_line
from tests.security.fuzz.cli import said_once
from tests.security.fuzz.mutate import changed_bytes, changed_value
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, Wrong

EVIL = "evil_module"


@dataclass(frozen=True)
class Place:
    """Where the journal lies, and its lines."""

    path: Path
    lines: list[bytes]


def make(rng: random.Random, _number: int) -> random.Random:
    """What changes the journal."""
    return rng


def lines(objective: str = "throughput") -> list[bytes]:
    """A journal of a pool that got nodes and trainers."""
    from pilot.service.settings import fresh_core

    settings = {"planner": "dp", "objective": objective}
    header = Header(FORMAT, "0.1.0", "local-1", 1.7e9, settings, {"name": "local", "grace_s": 5.0})
    quiet = Header(FORMAT, "0.1.0", "local-1", 1.7e9, {"planner": "dp"}, header.site)
    core, written = fresh_core(Contents(quiet, [], 0, 0)), [header_line(header)]
    events = [
        PoolChanged(joined=(NodeId("n1"), NodeId("n2"))),
        TrainerSubmitted(TrainerSpec(TrainerId("a"), 1, 4)),
        TrainerSubmitted(TrainerSpec(TrainerId("b"), 1, 2)),
        PoolChanged(joined=(NodeId("n3"),), lost=(NodeId("n1"),)),
    ]
    for seq, event in enumerate(events, 1):
        written.append(Decision(seq, float(seq), event, tuple(core.handle(float(seq), event))).line())
    return written


def prepare(folder: Path) -> Place:
    """The journal, and a module that says so if it is imported."""
    (folder / f"{EVIL}.py").write_text("def f(*_):\n    return 1.0\n")
    return Place(folder / "journal.jsonl", lines())


def attempt(place: Place, rng: random.Random) -> str:
    """Exit status 0: the same commands, 1: others, 2: refused; with one line each."""
    changed = list(place.lines)
    at = rng.randrange(len(changed))
    match rng.randrange(4):
        case 0:
            data = b"".join(changed)
            changed = [changed_bytes(rng, data)]
        case 1:
            header = json.loads(changed[0])
            header["settings"][rng.choice(("objective", "planner", "node_order"))] = rng.choice((f"{EVIL}:f", "x", 5))
            changed[0] = json.dumps(header).encode() + b"\n"
        case _:
            changed[at] = json.dumps(changed_value(rng, json.loads(changed[at]))).encode() + b"\n"
    place.path.write_bytes(b"".join(changed))
    status = said_once(lambda: run(["replay", "--journal", str(place.path)]), (0, 1, 2))
    if sys.modules.pop(EVIL, None) is not None:
        raise Wrong("the module that the journal names was imported")
    return {0: ACCEPTED, 1: "differs"}.get(status, REFUSED)


TARGET = Target("journals", 500, 60, make, prepare, attempt)
