"""Poses problems for planners: which trainers can use how many nodes of the pool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from pilot.core.config import CoordinatorConfig
from pilot.core.curves.measured import RescaleCosts
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import UNSAID_STEP_S, Candidate, Problem
from pilot.core.pool.blame import Blame
from pilot.core.pool.losses import NO_LOSS, LossRate
from pilot.core.pool.pool import ExpiringNodes, Pool
from pilot.core.trainer.trainer import Trainer

CURVE_PLANS = 2
"""At most this many plans per forward-looking time are asked for because curves moved."""


def pose(
    pool: Pool,
    blame: Blame,
    trainers: Sequence[Trainer],
    config: CoordinatorConfig,
    costs: RescaleCosts,
    reach: Mapping[TrainerId, int] | None,
    now_s: float,
    pins: Mapping[TrainerId, int],
    weights: Mapping[TrainerId, float],
    reserved: int,
    ending: ExpiringNodes,
    losses: LossRate,
) -> Problem | None:
    """The problem of dividing ``pool`` among ``trainers``; None if none of them could run.

    ``costs``: what rescales cost in the pool. ``reach``: the most nodes that each can have (without an entry: none),
    after a plan gave more than that. ``pins``: counts that are fixed; one that does not fit is dropped. ``weights``: of
    trials (:mod:`pilot.core.study.study`). ``reserved``: nodes that are kept for trials that are not trainers yet.
    ``ending``: free nodes that will not be here for long. ``losses``: how often nodes of the pool are lost.
    """
    growing = [t for t in trainers if not t.refuses_to_grow]
    able = [(t, room) for t in growing if (room := _room(t, pool, reach)) >= t.spec.min_nodes]
    if not able:
        return None
    nodes = max(0, pool.usable - blame.useless_to([t for t, _ in able]) - reserved - len(ending.nodes))
    candidates = [_timed(t, _weighted(_candidate(t, room, config, costs), weights), config, now_s) for t, room in able]
    return Problem(
        nodes=nodes,
        t_fwd_s=config.t_fwd_s,
        candidates=tuple(_pinned(candidates, nodes, pins)),
        step_s=config.decide_every_s or UNSAID_STEP_S,
        ending=len(ending.nodes),
        ends_in_s=ending.left_s,
        losses=losses if config.timed else NO_LOSS,
    )


def _pinned(candidates: Sequence[Candidate], nodes: int, pins: Mapping[TrainerId, int]) -> Iterator[Candidate]:
    """``candidates`` with those of the ``pins`` that fit, each and together."""
    for candidate in candidates:
        pin = pins.get(candidate.trainer)
        if pin is None or pin > nodes or not candidate.allows(pin):
            yield candidate
        else:
            nodes -= pin
            yield replace(candidate, pin=pin)


def _weighted(candidate: Candidate, weights: Mapping[TrainerId, float]) -> Candidate:
    weight = weights.get(candidate.trainer, 1.0)
    return candidate if weight == 1.0 else replace(candidate, value=candidate.value.scaled(weight))


def _timed(trainer: Trainer, candidate: Candidate, config: CoordinatorConfig, now_s: float) -> Candidate:
    if not config.timed:
        return candidate
    return replace(candidate, trained_s=trainer.measured.trained_s(now_s), left_s=trainer.left_s())


def wanted(trainers: Sequence[Trainer], config: CoordinatorConfig, costs: RescaleCosts) -> int:
    """How many nodes a plan would use if each of ``trainers`` could have as many as it wants: each of its terms
    (eq. 16) then depends on one trainer only."""
    return sum(_candidate(t, t.spec.max_nodes, config, costs).wants(config.t_fwd_s) for t in trainers)


def _candidate(trainer: Trainer, room: int, config: CoordinatorConfig, costs: RescaleCosts) -> Candidate:
    return trainer.candidate(trainer.value(config.objective), room, costs)


def outdated(trainer: Trainer, age_s: float, config: CoordinatorConfig) -> str:
    """Why ``trainer``'s progress outdates the last problem, posed ``age_s`` ago; "": it does not, or it is too early
    for another one."""
    due = age_s >= config.t_fwd_s / CURVE_PLANS
    if not (due and trainer.open and not (trainer.held or trainer.shelved) and trainer.measured.moved):
        return ""
    return f"trainer {trainer.id} scales differently than assumed"


def _room(trainer: Trainer, pool: Pool, reach: Mapping[TrainerId, int] | None) -> int:
    most = trainer.room(pool)
    return most if reach is None else min(most, reach.get(trainer.id, 0))
