"""The script that a worker runs for a row: ``worker.py ROW WAY FOLDER [slow]``. Events happen at fixed steps; ``slow``:
the second node counts as a slow one, whose share follows.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pilot.train.data.sampler import Bounds
from pilot.train.ranks.meters import PaceMeter
from pilot.train.session import Session
from pilot.train.state import shares
from tests.equivalence import recipe
from tests.equivalence.table import ROWS

CHANGES: dict[str, dict[int, int]] = {"1 -> 2 -> 1": {3: 1, 8: 2}}
"""By step: before summing, the ranks of this generation wait until they can switch to the next one. (If its ranks are
fast, they have switched before.)"""

DEATHS = {"one of two killed": 4}
"""In this step the second rank waits to be killed."""


SLOW_BATCH, SLOW_EPOCHS = 9, 6
"""More samples and steps than those of most rows."""

bounds: dict[int, Bounds] = {}
"""How each step was divided."""


def dies(folder: Path) -> Path:
    """Exists when it waits for that."""
    return folder / "dies"


def ran(folder: Path, node: str) -> Path:
    """The script's result on ``node``."""
    return folder / f"ran-{node}"


def play(way: str, folder: Path, node: str) -> None:
    """Make it happen."""
    step = Session.step
    bounds.clear()

    def played(session: Session, *arguments: Any, **keywords: Any) -> bool:
        group: Any = session._group
        if DEATHS.get(way) == session._training.position.step and node == "n1":
            dies(folder).touch()
            signal.pause()
        bounds[session._training.position.step] = session._loop.bounds(session._training.position.epoch_steps)
        waiting, member = CHANGES.get(way, {}).get(session.steps), group._membership
        while member.current is not None and member.current.generation == waiting and not member.ready_for:
            group._attend(None)
        return step(session, *arguments, **keywords)

    Session.step = played


def slow(node: str) -> None:
    """Have the node's computing time depend on its samples alone, so that shares are the same in each run."""
    shares.WINDOW, shares.LEAST_GAIN = 1, 0.04
    applied = PaceMeter.applied

    def timed(meter: PaceMeter, now_s: float, waited_s: float, samples: int) -> Any:
        report = applied(meter, now_s, waited_s, samples)
        meter.last_s = samples * (3.0 if node == "n1" else 1.0)
        return report

    PaceMeter.applied = timed  # type: ignore[method-assign]  # it takes the real one's place


def main() -> None:
    name, way, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    shares.LEAST_GAIN = 1.0  # shares that follow times differ from run to run
    node = Path(os.environ["PILOT_WORKER_SOCKET"]).stem
    row = ROWS[name]
    if "slow" in sys.argv[4:]:
        slow(node)
        row, recipe.EPOCHS = replace(row, batch=SLOW_BATCH), SLOW_EPOCHS
    play(way, folder, node)
    gave = row.script()
    assert gave is not None
    ledger = [tuple(row) for row in gave.session._training.ledger.rows]
    part = ran(folder, node).with_suffix(".part")
    torch.save((gave.tensors, ledger, bounds), part)
    part.rename(ran(folder, node))


if __name__ == "__main__":
    main()
