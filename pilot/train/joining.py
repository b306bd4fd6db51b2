"""Which group a process is in: that of a trainer on a pilot, or a script's by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pilot.train.alone import Alone
from pilot.train.elastic import Elastic
from pilot.train.exchange import Exchange
from pilot.train.group import RankGroup
from pilot.train.membership import Seat
from pilot.train.saver import Saver
from pilot.train.sockets import WorkerSockets
from pilot.train.stall_timer import StallTimer
from pilot.train.training import Training


def group_of(
    environment: Mapping[str, str], seat: Seat, training: Training, exchange: Exchange, resized: Callable[[int], None]
) -> RankGroup:
    """By what the agent put into the environment, see ``docs/processes.md``."""
    if "PILOT_CONTROL_FD" not in environment:
        return Alone(training)
    trainer = environment["PILOT_TRAINER"]
    link = WorkerSockets(int(environment["PILOT_CONTROL_FD"]), Path(environment["PILOT_WORKER_SOCKET"]))
    directory = Path(environment["PILOT_TRAINER_DIR"], "checkpoints")
    saver = Saver(trainer, directory, int(environment["PILOT_CHECKPOINTS_KEPT"]), link.tell)
    interval_s = float(environment["PILOT_CHECKPOINT_INTERVAL_S"])
    stall_timer = StallTimer(float(environment["PILOT_SILENT_S"]))
    return Elastic(trainer, seat, link, training, exchange, saver, interval_s, stall_timer, resized)
