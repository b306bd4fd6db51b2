"""What nodes log of their inner steps, in files that survive them; and where they hold until they are released."""

from __future__ import annotations

import pickle
import time
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from tests.seldom.case import Values

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Hold:
    """Where a node holds: in its inner step number ``step`` of a round, or "before" or "after" it gathers for it, or
    "in sum", before it reads the sum; in ``round``, or the first later one where it comes to that.
    """

    node: str
    round: int
    at: str = "step"
    step: int = 0

    def __str__(self) -> str:
        return f"{self.node}-{self.round}-{self.at.replace(' ', '-')}-{self.step}"


@dataclass(frozen=True)
class Record:
    """An inner step of a node: in which round, which began after ``opened`` steps, with which samples; all values
    before it, and those of the model after it.
    """

    node: str
    round: int
    opened: int
    epoch: int
    samples: list[int]
    before: Values
    after: Values
    when_s: float


class Log:
    """The records of one node, which survive it."""

    def __init__(self, folder: Path, node: str, holds: list[Hold]) -> None:
        self.folder, self.node, self.holds = folder, node, holds
        self.file = (folder / f"log-{node}").open("ab", buffering=0)

    def add(self, record: object) -> None:
        """Write one."""
        self.file.write(pickle.dumps(record))

    def held(self, number: int) -> None:
        """Note that a round is held."""
        held(self.folder, self.node, number).touch()

    def hold(self, number: int, at: str, step: int = 0) -> None:
        """Wait here, in round ``number``, if that is to be."""
        for hold in self.holds:
            if (at, step) == (hold.at, hold.step) and number >= hold.round and not reached(self.folder, hold).exists():
                part = self.folder / "part"
                part.write_text(str(number))
                part.rename(reached(self.folder, hold))
                self._wait(released(self.folder, hold))

    def _wait(self, path: Path) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not path.exists():
            assert time.monotonic() < end_s, f"no {path.name}"
            time.sleep(0.005)


def reached(folder: Path, hold: Hold) -> Path:
    """Has the round's number when a node holds there."""
    return folder / f"reached-{hold}"


def released(folder: Path, hold: Hold) -> Path:
    """Exists when it may go on."""
    return folder / f"released-{hold}"


def held(folder: Path, node: str, number: int) -> Path:
    """Exists when a node has held a round."""
    return folder / f"held-{node}-{number}"


def read(folder: Path) -> list[Record]:
    """Return all nodes' records, as long as they are complete."""
    records = []
    for path in sorted(folder.glob("log-*")):
        with path.open("rb") as file:
            while True:
                try:
                    records.append(pickle.load(file))
                except (EOFError, pickle.UnpicklingError):
                    break
    return records


def of_nodes(records: list[Record], processes: int) -> list[Record]:
    """Return the records of nodes of so many processes, n0 to n1 for example, each of which has a part of a batch."""
    by_process = {int(name[1:]): [*its] for name, its in groupby(records, lambda one: one.node)}
    made = []
    for first in range(0, len(by_process), processes):
        for parts in zip(*(by_process[first + number] for number in range(processes)), strict=True):
            assert len({(one.round, one.opened, one.epoch) for one in parts}) == 1
            torch.testing.assert_close(parts[0].after, parts[-1].after, rtol=0.0, atol=0.0)
            made.append(replace(parts[0], samples=sorted(sample for one in parts for sample in one.samples)))
    return made
