"""How each recorded script trains on several ranks: as alone, or otherwise. ``--summary``: counts of what was found."""

from __future__ import annotations

import csv
import gc
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from pilot.core.errors import UserError
from tests.equivalence import loops
from tests.told import RECORDED, TABLE, replay
from tests.told.replay import Replay, World
from tests.unit.train import storm
from tests.unit.train.storm import End

FIELDS = ["id", "kind", "text", "verdict", "courses", "epochs", "index"]
EPOCHS = int(os.environ.get("TOLD_EPOCHS", "3"))
LIMIT_S = 120.0
OF_RANKS = re.compile(r"_here\.|self\.(now|generations|waiting|_ends|_threads|_expected)\b|Rank\._orders")
"""Told of the threads that are ranks, and not of the script."""
_rank_of = storm.group_of

Course = tuple[str, int, list[End]]


def courses(steps: int, per: int) -> Iterator[Course]:
    """Names, numbers of ranks, and ends; for a training of so many steps, ``per`` of them in an epoch.

    Each is there: joined in an epoch's middle, at its last step, in the next one's first step and middle, and at its
    end; one of two killed in the middle of a step, once the older and once the newer one; a step void alone.
    """
    middle = max(1, per // 2)
    later = per + middle
    yield "two", 2, []
    for at in dict.fromkeys((middle, per - 1, per, later)):
        if at < steps:
            yield f"joins at step {at}", 1, [End(at, (True,), (False,), 1, at="step")]
    yield "joins at meeting 1", 1, [End(1, (True,), (False,), 1, at="meeting")]
    for at, heir in ((middle, "oldest"), (later, "newest")):
        if at < steps:
            yield f"killed in step {at}", 2, [End(at, (True,), (True,), 0, void=True, at="step", heir=heir)]
    if later < steps:
        yield f"void step {later}", 1, [End(later, (True,), (False,), 0, void=True, at="step")]


class Keeping(World):
    """Keeps its states after some steps, by name: ``kept_at``; "end" means the last one there, after the epoch's."""

    def __init__(self, script: Any, steps: dict[int, str], **options: Any) -> None:
        self._at, self.kept_at = steps, dict[str, Any]()
        super().__init__(script, 1, [], **options)

    def safe_point(self, rank: storm.Rank) -> None:
        """See :class:`World`."""
        position = rank.training.position
        name = self._at.get(position.step)
        if name is None or (rank.training.catch_up.meeting is not None and position.cursor and not position.at_end):
            return
        self.kept_at.setdefault(f"resumed at step {position.step}", storm.travelled(rank.training))
        if name == "end":
            self.kept_at[f"resumed at step {position.step} (end)"] = storm.travelled(rank.training)


def run(row: dict[str, Any], epochs: int, make: Callable[..., World]) -> tuple[World, list[Any]]:
    """The results of the last ranks."""
    replays: list[Replay] = []

    def script() -> Any:
        replays.append(Replay(row, _rank_of, epochs))
        return replays[-1].go()

    world = make(script)
    try:
        return world, world.run()
    finally:
        for patch in [patch for one in replays for patch in reversed(one.patches)][::-1]:
            patch.undo()


def differs(one: dict[str, Any], other: dict[str, Any]) -> str:
    """In what: "" if nothing."""
    if one is None:
        return "no end"
    kinds = dict.fromkeys(name.split()[0] for name in differing(one, other))
    if "steps" in kinds or "epochs" in kinds:
        return "other steps"
    return "" if not kinds or "parameter" in kinds else f"{', '.join(kinds)} only"


def is_same(one: Any, other: Any) -> bool:
    return one is not None and not differing(one, other)


def differing(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    names = dict.fromkeys([*one, *other])
    return [name for name in names if name != replay.PER_EPOCH and not _close(one.get(name), other.get(name))]


def _close(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return bool(one == other)
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    tolerance = {torch.float64: 1e-9, torch.float32: 1e-4}.get(one.dtype, 1e-2)
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _why(error: BaseException) -> str:
    word = "refused" if isinstance(error, UserError) else "raises"
    text = re.sub(r"/tmp/[^ )]+|0x[0-9a-f]+", "...", " ".join(str(error).split()))
    return f"{word} {type(error).__name__}: {text[:60]}"


def verdict(row: dict[str, Any]) -> tuple[str, list[str], int]:
    """Verdict, courses that differ, and how many epochs at least."""

    def alone(script: Any) -> World:
        return World(script, 1, [])

    for epochs in (EPOCHS, 0):
        try:
            (expected,) = run(row, epochs, alone)[1]
        except BaseException as error:
            why = f"unknown (alone: {_why(error)})"
            continue
        break
    else:
        return why, [], 0
    if expected is None or not expected["steps"]:
        return "unknown (no step alone)", [], epochs
    steps, found = expected["steps"], dict[str, str]()

    def compare(name: str, make: Any) -> World | None:
        try:
            world, results = run(row, epochs, make)
        except BaseException as error:
            found[name] = _why(error)
            return None
        if any(different := [one for one in results if not is_same(one, expected)]):
            found[name] = differs(different[0], expected)
        return world

    per = expected[replay.PER_EPOCH]
    middle = max(1, per // 2)
    keep = {middle: "", per: "end", per + middle: "", 2 * per: "end"}
    keep = {step: name for step, name in keep.items() if step < steps}
    world: Any = compare("again", lambda script: Keeping(script, keep))
    if found or world is None:
        return f"unknown (twice alone: {found['again'] or 'differs'})", [], epochs
    for name, state in world.kept_at.items():
        compare(name, lambda script, state=state: World(script, 1, [], begin=state))
    for name, count, ends in courses(steps, per):
        compare(name, lambda script, count=count, ends=ends: World(script, count, ends))
    listed = [f"{name} ({how})" if how else name for name, how in found.items()]
    return ("otherwise" if found else "same"), listed, epochs


def in_a_child(row: dict[str, Any]) -> tuple[str, list[str], int]:
    """The verdict, by a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.environ.get("TOLD_ERRORS", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        with os.fdopen(write, "w") as file:
            file.write(json.dumps(verdict(row)))
        os._exit(0)
    os.close(write)
    os.set_blocking(read, False)
    until, text = time.monotonic() + LIMIT_S, b""
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            os.close(read)
            return "unknown (takes too long)", [], 0
        time.sleep(0.02)
    with os.fdopen(read, "rb") as file:
        text = file.read() or b""
    found = json.loads(text or b'["unknown (the process died)", [], 0]')
    return found[0], found[1], found[2]


def main() -> None:
    """Goes on where the table ends."""
    done = {row["id"] for row in table()} if TABLE.exists() else set()
    replay.install()
    replay.install_threads()
    storm.DEADLINE_S = 6.0
    rows = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    for row in rows:
        row["told"] = [(kind, text) for kind, text in row["told"] if not OF_RANKS.search(text)]
    rows = [row for row in rows if row["told"]]
    for make in (loops.mlp, loops.linear):
        loops.fresh(make)  # made once
    for row in rows:
        path = row["test"].partition("::")[0]
        __import__(path.removesuffix(".py").replace("/", "."))  # libraries, once
        replay._code(replay.ROOT / path)
    for row in rows[:1]:
        verdict(row)  # torch imports what it needs
    gc.collect()
    gc.freeze()  # looking for the counter of an ``enumerate`` goes through the whole heap
    with TABLE.open("a") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        if not done:
            writer.writerow(FIELDS)
        rows.sort(key=lambda row: row["told"][0][0] == "own_values")  # the most, and alike
        for row in rows:
            name = f"{row['test'].removeprefix('tests/')}#{row['number']}"
            if name in done:
                continue
            what, where, epochs = in_a_child(row)
            kinds = ", ".join(dict.fromkeys(kind for kind, _ in row["told"]))
            texts = " | ".join(re.sub(r"/tmp/[^ )]+", "...", " ".join(text.split()))[:100] for _, text in row["told"])
            values = [name, kinds, texts, what, "; ".join(where), epochs, json.dumps(row["index"])]
            writer.writerow([str(value).replace("\t", " ") for value in values])
            file.flush()


def table() -> list[dict[str, str]]:
    """The rows of told.tsv."""
    with TABLE.open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def summary() -> None:
    """Prints counts by kind and verdict; a script that is told of several kinds counts in each."""
    counts = Counter((kind, row["verdict"].split()[0]) for row in table() for kind in row["kind"].split(", "))
    total = Counter(row["verdict"].split()[0] for row in table())
    names = ["otherwise", "same", "unknown"]
    print(f"{'kind':28}" + "".join(f"{name:>10}" for name in names))
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:28}" + "".join(f"{counts[kind, name]:10}" for name in names))
    print(f"{'scripts':28}" + "".join(f"{total[name]:10}" for name in names))
    for why, count in Counter(row["verdict"] for row in table() if row["verdict"].startswith("unknown")).most_common():
        print(f"{count:6} {why}")


if __name__ == "__main__":
    summary() if "--summary" in sys.argv else main()
