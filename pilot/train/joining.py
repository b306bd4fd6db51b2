"""The group that a process joins: an elastic trainer's, a checked run's, or that of a script that runs alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pilot.core.errors import UserError
from pilot.protocol.run_identity import GRADIENTS
from pilot.train.between.between import Between
from pilot.train.check.settings import CheckedRun
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.node.membership import Seat
from pilot.train.node.node_ties import NodeTies
from pilot.train.node.sockets import inherited, worker_sockets
from pilot.train.ranks.elastic import Elastic
from pilot.train.ranks.group import RankGroup
from pilot.train.ranks.meters import StallTimer
from pilot.train.ranks.saver import Saver
from pilot.train.state.training import Training

_claimed: list[bool] = []


def group_of(
    environment: Mapping[str, str],
    seat: Seat,
    training: Training,
    exchanges: Exchanges,
    resized: Callable[[int], None],
    ties: NodeTies,
    between: Between,
) -> RankGroup:
    """Return the group according to the agent's environment variables, see ``docs/development/processes.md``."""
    _claim()
    if (run := CheckedRun.of(environment)) is not None:
        return _checked(run, training, exchanges, resized)
    if "PILOT_CONTROL_FD" not in environment:
        training.is_alone = True
        return RankGroup(training, resized)
    trainer = environment["PILOT_TRAINER"]
    link = worker_sockets(environment)
    directory = Path(environment["PILOT_TRAINER_DIR"], "checkpoints")
    uid, keeps = environment["PILOT_TRAINER_UID"], int(environment["PILOT_CHECKPOINTS_KEPT"])
    saver = Saver(trainer, uid, directory, keeps, link.send, lambda: training.agreed_step, training.shards)
    interval_s = float(environment["PILOT_CHECKPOINT_INTERVAL_S"])
    stall_timer = StallTimer(float(environment["PILOT_SILENT_S"]), float(environment["PILOT_PATIENCE_S"]))
    return Elastic(trainer, seat, link, training, exchanges, saver, interval_s, stall_timer, resized, ties, between)


def _checked(run: CheckedRun, training: Training, exchanges: Exchanges, resized: Callable[[int], None]) -> RankGroup:
    if training.outer is not None:
        raise UserError("pilot check does not run scripts with sync=, whose nodes train by themselves between rounds")
    if training.sharding is not None:
        raise UserError("pilot check does not run sharded models: try the script on two nodes")
    from pilot.train.check.records import RecordedGroup
    from pilot.train.check.world import ProcessLink  # not in a process that trains

    training.accepted |= {GRADIENTS}  # the check finds differences after each step
    link: Any = ProcessLink(inherited(run.link).detach())
    return RecordedGroup(run, link, training, exchanges, resized)


def _claim() -> None:
    """Ensure that the process has only one session."""
    if _claimed:
        raise UserError(
            "this process already has a session: train everything together in one session, and run the next"
            " training as a separate script"
        )
    _claimed.append(True)
