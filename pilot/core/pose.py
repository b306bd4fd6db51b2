"""What a planner is asked: who can use how many nodes of the pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from pilot.core.blame import Blame
from pilot.core.config import CoordinatorConfig
from pilot.core.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.measured import RescaleCosts
from pilot.core.pool import Pool
from pilot.core.problem import Problem
from pilot.core.trainer import Trainer


def pose(
    pool: Pool,
    blame: Blame,
    trainers: Sequence[Trainer],
    config: CoordinatorConfig,
    costs: RescaleCosts,
    reach: Mapping[TrainerId, int] | None,
) -> Problem | None:
    """The problem of dividing ``pool`` among ``trainers``; None where none of them could run.

    ``costs``: what rescales cost in the pool. ``reach``: the most nodes that each can have (without an entry: none),
    where a plan gave more than that.
    """
    growing = [t for t in trainers if not t.refuses_to_grow]
    able = [(t, room) for t in growing if (room := _room(t, pool, reach)) >= t.spec.min_nodes]
    if not able:
        return None
    usual = _usual_rate([t for t, _ in able])
    return Problem(
        nodes=pool.usable - blame.useless_to([t for t, _ in able]),
        t_fwd_s=config.t_fwd_s,
        candidates=tuple(
            t.candidate(t.spec.objective_curve or config.objective(t.spec, _curve(t, usual)), room, costs)
            for t, room in able
        ),
    )


def _usual_rate(trainers: Sequence[Trainer]) -> float:
    """What trainers do on one node: the geometric mean of those of which it is known, 1 where it is of none."""
    known = (t.measured.planned.single_node_rate() for t in trainers if not t.measured.guessed)
    return geometric_mean([rate for rate in known if rate > 0] or [1.0])


def _curve(trainer: Trainer, usual: float) -> Curve:
    """Its scaling curve; who is not known yet is taken to be as fast as is ``usual``, or it would never be tried."""
    planned = trainer.measured.planned
    return planned.scaled(usual) if trainer.measured.guessed else planned


def _room(trainer: Trainer, pool: Pool, reach: Mapping[TrainerId, int] | None) -> int:
    most = trainer.room(pool)
    return most if reach is None else min(most, reach.get(trainer.id, 0))
