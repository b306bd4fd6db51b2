"""Journals: ``pilot replay --journal`` and a restart read one, with all its segments, and run nothing that it names."""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from pilot import __version__
from pilot.cli.main import run
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError
from pilot.core.events import Event, PoolChanged, TrainerSubmitted
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir import segments
from pilot.rundir.entries import Decision, unsealed
from pilot.rundir.journal import FORMAT, Header, header_line, read
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.restore import Books, restore, taken
from pilot.service.settings import core_of
from tests.resealed import line_of
from tests.security.fuzz.mutate import changed_bytes, changed_value
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, Wrong, check_line, said_once

EVIL = "evil_module"


@dataclass(frozen=True)
class Place:
    """A journal in segments: its path, its files as they were written, its entries, and the core's state at its end."""

    path: Path
    files: dict[Path, bytes]
    entries: list[Decision]
    state: bytes


SETTINGS = {"planner": "dp", "objective": "throughput"}
EVENTS = [
    PoolChanged(joined=(NodeId("n1"), NodeId("n2"))),
    TrainerSubmitted(TrainerSpec(TrainerId("a"), 1, 4)),
    TrainerSubmitted(TrainerSpec(TrainerId("b"), 1, 2)),
    PoolChanged(joined=(NodeId("n3"),), lost=(NodeId("n1"),)),
]


def header(settings: dict[str, str]) -> Header:
    """Of a pool of a local site."""
    return Header(FORMAT, __version__, "local-1", 1.7e9, settings, {"name": "local", "grace_s": 5.0})


def core() -> Coordinator:
    """The initial state of such a pool."""
    return core_of(header(SETTINGS))


def lines(objective: str = "throughput") -> list[bytes]:
    """The journal of a pool with nodes and trainers."""
    made, written = core(), [header_line(header({"planner": "dp", "objective": objective}))]
    for seq, event in enumerate(EVENTS, 1):
        written.append(Decision(seq, float(seq), event, tuple(made.handle(float(seq), event))).line())
    return written


def written(
    path: Path, header: Header, made: Coordinator, events: Iterable[tuple[float, Event]], ends: Container[int]
) -> Place:
    """The journal of these events, as a coordinator writes it, with segments that end after the entries ``ends``."""
    writer, books, entries = JournalWriter.create(path, header), Books.beside(made), []
    for seq, (now_s, event) in enumerate(events, 1):
        commands = made.handle(now_s, event)
        books.note(now_s, event, commands)
        writer.decided(now_s, event, commands)
        entries.append(Decision(seq, now_s, event, tuple(commands)))
        if seq in ends:
            writer.end_segment(now_s, *taken(made, books, seq))
    writer.close()
    files = [path, *sorted(segments.folder(path).iterdir())]
    return Place(path, {file: file.read_bytes() for file in files}, entries, segments.state_bytes(made))


def in_segments(folder: Path) -> Place:
    """The journal of ``lines``, in three segments."""
    events = ((float(seq), event) for seq, event in enumerate(EVENTS, 1))
    return written(folder / "journal.jsonl", header(SETTINGS), core(), events, (1, 3))


def prepare(folder: Path) -> Place:
    """The journal, and a module that reports when it is imported."""
    (folder / f"{EVIL}.py").write_text("def f(*_):\n    return 1.0\n")
    return in_segments(folder)


def attempt(place: Place, rng: random.Random) -> str:
    """Exit status 0: the same commands, 1: different ones, 2: refused; one line each."""
    changed = place.files[place.path].splitlines(keepends=True)
    at = rng.randrange(len(changed))
    closed = {path: data for path, data in place.files.items() if path.suffix == ".gz"}
    match rng.randrange(5):
        case 0:
            data = b"".join(changed)
            changed = [changed_bytes(rng, data)]
        case 1:
            head = unsealed(changed[0].rstrip())
            head["settings"][rng.choice(("objective", "planner", "node_order"))] = rng.choice((f"{EVIL}:f", "x", 5))
            changed[0] = line_of(head)
        case 2:
            one = rng.choice(list(closed))
            text = gzip.decompress(closed[one])
            closed[one] = rng.choice((changed_bytes(rng, closed[one]), gzip.compress(changed_bytes(rng, text))))
        case _:
            value = changed_value(rng, unsealed(changed[at].rstrip()))
            changed[at] = line_of(value) if isinstance(value, dict) else json.dumps(value).encode() + b"\n"
    place.path.write_bytes(b"".join(changed))
    for path, data in closed.items():
        path.write_bytes(data)
    _restart(place.path)
    status = said_once(lambda: run(["replay", "--journal", str(place.path)]), (0, 1, 2))
    if sys.modules.pop(EVIL, None) is not None:
        raise Wrong("the module that the journal names was imported")
    return {0: ACCEPTED, 1: "differs"}.get(status, REFUSED)


def _restart(path: Path) -> None:
    """What a coordinator makes of it: a state and clear lines, or one line."""
    try:
        for text in restore(read(path), core).flaws:
            check_line(text)
    except JournalError as error:
        check_line(str(error))


TARGET = Target("journals", 500, 60, attempt, prepare=prepare)
