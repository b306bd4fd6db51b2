"""The script that a worker runs for a row: ``worker.py ROW WAY FOLDER``. Events happen at fixed steps."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from pilot.train.session import Session
from pilot.train.state import shares
from tests.equivalence.table import ROWS

CHANGES: dict[str, dict[int, int]] = {"1 -> 2 -> 1": {3: 1, 8: 2}}
"""By step: before summing, the ranks of this generation wait until they can switch to the next one. (If its ranks are
fast, they have switched before.)"""

DEATHS = {"one of two killed": 4}
"""In this step the second rank waits to be killed."""


def dies(folder: Path) -> Path:
    """Exists when it waits for that."""
    return folder / "dies"


def ran(folder: Path, node: str) -> Path:
    """The script's result on ``node``."""
    return folder / f"ran-{node}"


def play(way: str, folder: Path, node: str) -> None:
    """Make it happen."""
    step = Session.step

    def played(session: Session, *arguments: Any, **keywords: Any) -> bool:
        group: Any = session._group
        if DEATHS.get(way) == session._training.position.step and node == "n1":
            dies(folder).touch()
            signal.pause()
        waiting, member = CHANGES.get(way, {}).get(session.steps), group._membership
        while member.current is not None and member.current.generation == waiting and not member.ready_for:
            group._attend(None)
        return step(session, *arguments, **keywords)

    Session.step = played


def main() -> None:
    name, way, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    shares.LEAST_GAIN = 1.0  # shares that follow times differ from run to run
    node = Path(os.environ["PILOT_WORKER_SOCKET"]).stem
    play(way, folder, node)
    gave = ROWS[name].script()
    assert gave is not None
    ledger = [tuple(row) for row in gave.session._training.ledger.rows]
    part = ran(folder, node).with_suffix(".part")
    torch.save((gave.tensors, ledger), part)
    part.rename(ran(folder, node))


if __name__ == "__main__":
    main()
