"""Journals whose files lost blocks, on a disk that zeroed, dropped, doubled or moved them, or flipped a bit.

A restart comes up with every trainer whose submission is intact, names all entries that are not, and knows every
generation that an intact entry names. What reads the journal of a pool that is down copes as well.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from pilot import __version__
from pilot.cli.main import run
from pilot.core.coordinator import Coordinator
from pilot.core.errors import JournalError
from pilot.core.events import TrainerRemoved, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.rundir import segments
from pilot.rundir.journal import FORMAT, Header, read
from pilot.service.durability.restore import Restored, restore
from tests.property.test_core import ACTIONS, USERS, play
from tests.property.world import World
from tests.security.fuzz.mutate import changed_blocks
from tests.security.fuzz.target import ACCEPTED, Target, Wrong, check_line, said_once
from tests.security.fuzz.targets.journals import Place, written

HEADER = Header(FORMAT, __version__, "local-1", 1.7e9, {}, {"name": "local"})
ENTRIES = 400
SEGMENT = 150
_SPAN = re.compile(r"entr(?:y|ies) (\d+)(?: to (\d+))? of the journal (?:is|are) missing: ")
_TAIL = re.compile(r"what follows entry (\d+) of the journal is missing: ")


def fresh() -> Coordinator:
    """A core as it was when the journal began."""
    return Coordinator(World().config)


def prepare(folder: Path) -> Place:
    """The journal of a pool in which trainers trained, failed and were removed, and nodes came and went."""
    rng, world = random.Random(1), World()
    while len(world.history) < ENTRIES:
        play([(rng.choice([*ACTIONS, "answer", "answer", "join", *USERS]), rng.randrange(1 << 16))], world)
    (folder / "run").mkdir()
    events = ((now_s, event) for now_s, event, _ in world.history)
    return written(folder / "run" / "journal.jsonl", HEADER, fresh(), events, range(0, 10 * ENTRIES, SEGMENT))


def attempt(place: Place, rng: random.Random) -> str:
    """What is restored from the damaged files."""
    for file, data in place.files.items():
        file.write_bytes(data)
    hit = rng.sample(list(place.files), rng.choice((1, 1, 1, 2, 3)))
    for file in hit:
        file.write_bytes(changed_blocks(rng, place.files[file]))
    try:
        contents = read(place.path)
    except JournalError as error:
        check_line(str(error))
        if {place.path, segments.folder(place.path) / "header.json"} <= set(hit):
            return "without header"
        raise Wrong(f"one header is whole: {error}") from None
    restored = restore(contents, fresh)
    ends = _check(place, restored)
    said_once(lambda: run(["events", "--run-dir", str(place.path.parent)]), (0,))
    said_once(lambda: run(["replay", "--journal", str(place.path)]), (0, 1))
    if restored.missing or ends < len(place.entries):
        return "said" if restored.missing else "cut off"
    if segments.state_bytes(restored.core) != place.state:
        raise Wrong("nothing is said to be missing, and another state was restored")
    return "repaired" if restored.flaws else ACCEPTED


def _check(place: Place, restored: Restored) -> int:
    """Returns the number of the last entry: later ones may have been cut off without a trace."""
    for text in restored.flaws:
        check_line(text)
    whole = set(place.path.read_bytes().split(b"\n"))
    mine = [entry for entry in place.entries if entry.line() in place.files[place.path]]
    intact = [entry for entry in mine if entry.line().removesuffix(b"\n") in whole]
    told = _told(restored.missing)
    *_, last, _ = [b"", *place.path.read_bytes().split(b"\n")]
    ends = max((entry.seq for entry in intact if entry.line() == last + b"\n"), default=place.entries[-1].seq)
    if unsaid := {entry.seq for entry in mine if entry.seq <= ends} - {entry.seq for entry in intact} - told:
        raise Wrong(f"nothing is said of the entries {sorted(unsaid)[:10]}: {restored.flaws}")
    removed = {entry.event.trainer for entry in place.entries if isinstance(entry.event, TrainerRemoved)}
    core = restored.core
    for entry in intact:
        event = entry.event
        if isinstance(event, TrainerSubmitted) and event.spec.trainer not in {*core.trainers, *core.past, *removed}:
            raise Wrong(f"entry {entry.seq} is whole, and {event.spec.trainer} is gone: {restored.flaws}")
        for item in (event, *entry.commands):
            name, generation = getattr(item, "trainer", None), getattr(item, "generation", None)
            trainer = core.trainers.get(TrainerId(str(name)))
            if generation is None or trainer is None:
                continue
            if max(trainer.generation, restored.generations.get(trainer.id, 0)) < generation:
                raise Wrong(f"entry {entry.seq} names generation {generation} of {name}: {restored.flaws}")
    return ends


def _told(missing: list[str]) -> set[int]:
    """The numbers of the entries that are said to be missing."""
    spans = [match for text in missing if (match := _SPAN.match(text))]
    tails = [int(match[1]) for text in missing if (match := _TAIL.match(text))]
    told = {seq for match in spans for seq in range(int(match[1]), int(match[2] or match[1]) + 1)}
    return told | {seq for last in tails for seq in range(last + 1, 2 * ENTRIES)}


TARGET = Target("journal_blocks", 1000, 20, attempt, prepare=prepare)
