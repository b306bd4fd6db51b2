"""Ways to train that take turns: all are ready at once, and one at a time runs a block of steps, so that a ratio
compares what ran in the same seconds. The ranks of a way share a folder, whose files say who is ready for what.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOOK_S = 0.002


class Seat:
    """A rank of a way.

    Parameters
    ----------
    folder : the way's folder
    rank : 0 to the number of ranks - 1
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._block = -1

    def wait(self) -> None:
        """Wait until it may run its next block."""
        self._block += 1
        _ready(self._folder, self._block, self._rank).touch()
        while not _go(self._folder, self._block).exists():
            time.sleep(_LOOK_S)

    def tell(self, found: Any) -> None:
        """Report the block as done, with this result."""
        path = _result(self._folder, self._block, self._rank)
        path.with_suffix(".part").write_text(json.dumps(found))
        path.with_suffix(".part").rename(path)


class Turns:
    """The controlling side of one way.

    Parameters
    ----------
    folder, ranks : the way's folder and number of ranks
    wait : returns when the given condition holds
    """

    def __init__(self, folder: Path, ranks: int, wait: Callable[[Callable[[], bool]], None]) -> None:
        self._folder, self._ranks, self._wait = folder, ranks, wait
        self._block = -1

    def run(self) -> list[Any]:
        """Let it run a block once all ranks are ready; the results by rank."""
        self._block += 1
        self._see(_ready)
        _go(self._folder, self._block).touch()
        return [json.loads(path.read_text()) for path in self._see(_result)]

    def _see(self, name: Callable[[Path, int, int], Path]) -> list[Path]:
        paths = [name(self._folder, self._block, rank) for rank in range(self._ranks)]
        self._wait(lambda: all(path.exists() for path in paths))
        return paths


def _ready(folder: Path, block: int, rank: int) -> Path:
    return folder / f"ready-{block}-{rank}"


def _go(folder: Path, block: int) -> Path:
    return folder / f"go-{block}"


def _result(folder: Path, block: int, rank: int) -> Path:
    return folder / f"result-{block}-{rank}.json"
