"""Where a planner decides who shares the pool, nobody who runs is pushed out for less than its rescale costs."""

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings

from pilot import planners
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Problem
from tests.property.test_planners import problems

TOLERANCE = 1e-9


@settings(max_examples=150, deadline=None)
@given(problems())
def test_who_runs_loses_nodes_only_if_the_others_gain_more_than_its_rescale_costs(problem: Problem) -> None:
    plan = planners.make("dp")
    made = plan(replace(problem, queue_share=0.97))
    counts = made.as_dict()
    there = tuple(c for c in problem.candidates if c.trainer in counts)
    assert all(c in there for c in problem.candidates if c.current_nodes)
    able = (c for c in there if c.allows(c.current_nodes) and c.current_nodes <= problem.nodes)
    for runs in able:
        if counts[runs.trainer] < runs.current_nodes:
            pinned = tuple(replace(c, pin=c.current_nodes) if c is runs else c for c in there)
            kept = plan(replace(problem, candidates=pinned)).as_dict()
            gained = _done(problem, counts) - _done(problem, kept)
            cost = runs.value_at(runs.current_nodes) * runs.rescale_down_s
            others = _paid(problem, counts, runs.trainer) - _paid(problem, kept, runs.trainer)
            assert gained >= cost + others - TOLERANCE * max(1.0, abs(gained), cost)


def _done(problem: Problem, counts: Mapping[TrainerId, int]) -> float:
    return problem.t_fwd_s * sum(c.value_at(counts.get(c.trainer, 0)) for c in problem.candidates)


def _paid(problem: Problem, counts: Mapping[TrainerId, int], without: TrainerId) -> float:
    """What the rescales of the others cost."""
    others = [c for c in problem.candidates if c.trainer != without]
    return sum(c.value_at(c.current_nodes) * c.rescale_s(counts.get(c.trainer, 0)) for c in others)
