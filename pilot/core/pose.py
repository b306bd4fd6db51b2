"""What a planner is asked: who can use how many nodes of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pilot.core.blame import Blame
from pilot.core.config import CoordinatorConfig
from pilot.core.ids import TrainerId
from pilot.core.measured import RescaleCosts
from pilot.core.pool import Pool
from pilot.core.problem import Candidate, Problem
from pilot.core.trainer import Trainer


def pose(
    pool: Pool,
    blame: Blame,
    trainers: Sequence[Trainer],
    config: CoordinatorConfig,
    costs: RescaleCosts,
    reach: Mapping[TrainerId, int] | None,
    pins: Mapping[TrainerId, int],
) -> Problem | None:
    """The problem of dividing ``pool`` among ``trainers``; None where none of them could run.

    ``costs``: what rescales cost in the pool. ``reach``: the most nodes that each can have (without an entry: none),
    where a plan gave more than that. ``pins``: counts that are fixed; one that does not fit is dropped.
    """
    growing = [t for t in trainers if not t.refuses_to_grow]
    able = [(t, room) for t in growing if (room := _room(t, pool, reach)) >= t.spec.min_nodes]
    if not able:
        return None
    nodes = pool.usable - blame.useless_to([t for t, _ in able])
    candidates = [_candidate(t, room, config, costs) for t, room in able]
    return Problem(nodes, config.t_fwd_s, tuple(_pinned(candidates, nodes, pins)))


def _pinned(candidates: Sequence[Candidate], nodes: int, pins: Mapping[TrainerId, int]) -> Iterator[Candidate]:
    """``candidates`` with those of the ``pins`` that fit, each and together."""
    for candidate in candidates:
        pin = pins.get(candidate.trainer)
        if pin is None or pin > nodes or not candidate.allows(pin):
            yield candidate
        else:
            nodes -= pin
            yield replace(candidate, pin=pin)


def wanted(trainers: Sequence[Trainer], config: CoordinatorConfig, costs: RescaleCosts) -> int:
    """How many nodes a plan would use if all of ``trainers`` could have what they want of it: its terms (eq. 16) then
    depend on one trainer each."""
    return sum(_candidate(t, t.spec.max_nodes, config, costs).wants(config.t_fwd_s) for t in trainers)


def _candidate(trainer: Trainer, room: int, config: CoordinatorConfig, costs: RescaleCosts) -> Candidate:
    spec = trainer.spec
    return trainer.candidate(spec.objective_curve or config.objective(spec, trainer.measured.curve), room, costs)


def _room(trainer: Trainer, pool: Pool, reach: Mapping[TrainerId, int] | None) -> int:
    most = trainer.room(pool)
    return most if reach is None else min(most, reach.get(trainer.id, 0))
