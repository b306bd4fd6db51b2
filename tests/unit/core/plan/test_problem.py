import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId, natural_key
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.core.trainer.spec import BUDGET_MAX_H, COST_MAX_S, NODES_MAX, PRIORITY_MAX, TIME_MAX_S, TrainerSpec
from pilot.service.settings import Settings
from pilot.site.site import Site
from tests.property.test_planners import curves

A, B = TrainerId("a"), TrainerId("b")


def candidate(trainer: TrainerId, now: int, low: int = 1, high: int = 8) -> Candidate:
    return Candidate(trainer, now, low, high, Curve.of([(1, 10), (4, 34)]), 20.0, 5.0)


def test_gain_is_eq_16() -> None:
    c = candidate(A, now=2)
    assert c.gain(2, 100) == 100 * 18
    assert c.gain(4, 100) == 100 * 34 - 18 * 20
    assert c.gain(1, 100) == 100 * 10 - 18 * 5
    assert c.gain(0, 100) == -18 * 5


@settings(max_examples=200, deadline=None)
@given(
    curves(), *[st.integers(1, 9)] * 2, st.integers(0, 12), *[st.floats(0, 50)] * 2, st.sampled_from([(), (1, 4, 6)])
)
def test_it_wants_a_count_on_which_it_gains_as_much_as_on_any(
    curve: Curve, one: int, other: int, held: int, up_s: float, down_s: float, sizes: tuple[int, ...]
) -> None:
    low, high = sorted((one, other)) if not sizes else (sizes[0], sizes[-1])
    its = Candidate(A, held, low, high, curve, up_s, down_s, sizes)
    most = max(its.gain(nodes, 100.0) for nodes in range(low, high + 1) if its.allows(nodes))
    assert its.allows(its.wants(100.0)) and its.gain(its.wants(100.0), 100.0) == pytest.approx(most)


def test_of_counts_that_are_worth_as_much_it_wants_the_smallest() -> None:
    flat = Curve.of([(1, 10.0), (3, 20.0), (8, 20.0)])
    assert Candidate(A, 0, 1, 8, flat, 0.0, 0.0).wants(100.0) == 3


def test_a_start_from_nothing_is_free_and_parked_nodes_make_no_progress() -> None:
    assert candidate(A, now=0).gain(4, 100) == 100 * 34
    parked = candidate(A, now=1, low=2)
    assert parked.gain(1, 100) == 0
    assert parked.gain(2, 100) == 100 * 18


def test_feasible_means_sizes_and_capacity() -> None:
    problem = Problem(5, 100, (candidate(A, 0, low=2), candidate(B, 0)))
    assert problem.feasible({A: 2, B: 3})
    assert not problem.feasible({A: 1, B: 3})
    assert not problem.feasible({A: 3, B: 3})
    assert not problem.feasible({A: 0, B: 9})


def test_a_trainer_missing_in_the_counts_gets_nothing() -> None:
    problem = Problem(5, 100, (candidate(A, 0), candidate(B, 0, low=2)))
    assert problem.feasible({A: 5}) and problem.feasible({})
    assert (problem.objective({A: 1}), problem.objective({B: 2})) == (1000, 1800)


def test_natural_order() -> None:
    assert sorted(["n10", "n2", "m1", "n2a", "n02"], key=natural_key) == ["m1", "n02", "n2", "n2a", "n10"]
    digits = ["1" * 1000, "0", "9" * 998, "2" * 999]
    assert sorted(digits, key=natural_key) == digits, "a thousand of them are a text, which comes before numbers"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"min_nodes": 5, "max_nodes": 2}, "exceeds"),
        ({"min_nodes": 0}, "at least 1"),
        ({"max_nodes": NODES_MAX + 1}, "at most"),
        ({"rescale_up_s": -0.1}, "rescale cost"),
        ({"rescale_down_s": -0.1}, "rescale cost"),
        ({"rescale_up_s": 2 * COST_MAX_S}, "rescale cost"),
        ({"priority": 0.0}, "priority"),
        ({"rescale_down_s": 2 * COST_MAX_S}, "rescale cost"),
        ({"priority": 2 * PRIORITY_MAX}, "priority"),
        ({"warm_up_s": 0.0}, "warm_up_s"),
        ({"warm_up_s": 2 * TIME_MAX_S}, "warm_up_s"),
        ({"after_loop_s": 0.0}, "after_loop_s"),
        ({"after_loop_s": 2 * TIME_MAX_S}, "after_loop_s"),
        ({"patience_s": 0.0}, "patience_s"),
        ({"patience_s": 2 * TIME_MAX_S}, "patience_s"),
        ({"budget_node_hours": 0.0}, "a budget"),
        ({"budget_node_hours": 2 * BUDGET_MAX_H}, "a budget"),
    ],
)
def test_a_bad_spec_is_refused(wrong: dict[str, float], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        TrainerSpec(A, **wrong)


@pytest.mark.parametrize("per_s", [(0.0, 1e-12), (0.0, 1.0, 1e18)])
def test_one_value_that_is_no_rate_is_enough(per_s: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match="a rate must be 0 or between"):
        TrainerSpec(A, curve=Curve(tuple(map(float, range(len(per_s)))), per_s))
    assert TrainerSpec(A, curve=Curve((0.0, 1.0), (0.0, 1.0))).curve is not None


def test_the_limits_of_a_spec_are_allowed() -> None:
    least = TrainerSpec(
        A, 1, 1, rescale_up_s=0.0, rescale_down_s=0.0, priority=1 / PRIORITY_MAX,
        warm_up_s=0.1, after_loop_s=0.1, patience_s=0.1, budget_node_hours=0.1,
    )  # fmt: skip
    most = TrainerSpec(
        A, NODES_MAX, NODES_MAX, rescale_up_s=COST_MAX_S, rescale_down_s=COST_MAX_S, priority=PRIORITY_MAX,
        warm_up_s=TIME_MAX_S, after_loop_s=TIME_MAX_S, patience_s=TIME_MAX_S, budget_node_hours=BUDGET_MAX_H,
    )  # fmt: skip
    assert least.max_nodes == 1 and most.min_nodes == NODES_MAX


def test_the_defaults_of_a_live_pool_are_those_of_the_core() -> None:
    live, alone = Settings().config(), CoordinatorConfig()
    assert (live.t_fwd_s, live.max_parallel_trainers) == (alone.t_fwd_s, alone.max_parallel_trainers)
    assert (live.objective, live.node_order, live.timed) == (alone.objective, alone.node_order, alone.timed)
    site = Site(name="s", scheduler="local")
    assert (site.grace_s, site.checkpoint_interval_s) == (alone.grace_s, alone.checkpoint_interval_s)


def test_nodes_that_leave_count_for_the_time_until_then_and_for_one_more_rescale() -> None:
    """Of four new nodes one leaves after 30 of 100 seconds; the other three go on, and the trainer pays R_dw."""
    one = candidate(A, now=0)
    problem = Problem(3, 100, (one,), ending=1, ends_in_s=30.0)
    assert problem.gain(one, 4, 1) == 30 * 34 + 70 * 26 - 34 * 5
    assert problem.gain(one, 4) == 100 * 34
    assert problem.objective({A: 4}, {A: 1}) == problem.gain(one, 4, 1)


def test_without_the_nodes_that_leave_counts_are_allowed_ones_too() -> None:
    problem = Problem(4, 100, (candidate(A, 0, low=2),), ending=2)
    assert problem.feasible({A: 3}, {A: 1}) and problem.feasible({A: 2}, {A: 2})
    assert not problem.feasible({A: 2}, {A: 1}), "one that stays is fewer than it can run on"
    assert not problem.feasible({A: 3}, {A: 3}), "there are only two"
    assert not Problem(4, 100, (candidate(A, 0),)).feasible({A: 5}), "none leave unless it is said"
    assert not Problem(4, 100, (candidate(A, 0),)).feasible({A: 5}, {A: 1})


@pytest.mark.parametrize(("nodes", "most"), [(2, 0), (3, 3), (4, 3)])
def test_a_pinned_candidate_gets_all_its_nodes_or_none(nodes: int, most: int) -> None:
    assert replace(candidate(A, 0), pin=3).most_within(nodes) == most


@pytest.mark.parametrize(
    "wrong",
    [
        {"t_fwd_s": 0.0},
        {"t_fwd_s": math.nan},
        {"decide_every_s": -1.0},
        {"decide_every_s": math.inf},
        {"decide_every_s": math.nan},
        {"max_parallel_trainers": 0},
    ],
)
def test_a_configuration_by_which_nothing_could_be_decided_is_refused(wrong: dict[str, float]) -> None:
    [name] = wrong
    with pytest.raises(UserError, match=name):
        CoordinatorConfig(**wrong)  # type: ignore[arg-type]  # one of the keywords, whichever its type


def test_sizes_are_their_own_bounds() -> None:
    spec = TrainerSpec(A, 1, 64, sizes=(2, 4, 8))
    assert (spec.min_nodes, spec.max_nodes) == (2, 8)
    assert [spec.fitting(n) for n in (1, 2, 3, 7, 9)] == [1, 2, 2, 4, 8]
    assert TrainerSpec(A, 2, 8).fitting(7) == 7


@pytest.mark.parametrize(
    ("sizes", "why"), [((2, 1), "must be increasing"), ((1, 1), "must be increasing"), ((1, 9), "size 9 is not")]
)
def test_invalid_sizes_are_refused(sizes: tuple[int, ...], why: str) -> None:
    with pytest.raises(UserError, match=f"trainer a: .*{why}"):
        TrainerSpec(A, 1, 8, sizes=sizes)


def test_nodes_of_several_types_compute_as_fast_as_their_speeds_together() -> None:
    """On 2 nodes of half the speed and 1 of the reference type it computes as on 2; rescaling up takes longer."""
    c = replace(candidate(A, now=2), held=(1, 1), speeds=(1.0, 0.5))
    assert c.effective((1, 2)) == 2.0 and c.value_on((1, 2)) == 18.0
    held = 14.0  # on 1.5 nodes
    assert c.gain_on((1, 1), 100.0) == 100 * held
    assert c.gain_on((1, 2), 100.0) == 100 * 18 - held * 20
    assert c.gain_on((1, 0), 100.0) == 100 * 10 - held * 5
    assert c.gain_on((0, 2), 100.0) == 100 * 10 - held * 20, "it pays once for what it gets and what it gives back"
    assert replace(c, rescale_down_s=50.0).gain_on((0, 2), 100.0) == 100 * 10 - held * 50
    assert replace(c, min_nodes=2, max_nodes=2).value_on((1, 0)) == 0.0


def test_a_trainer_may_have_only_types_that_it_can_use_and_only_one_if_its_shares_are_equal() -> None:
    c = replace(candidate(A, now=0, low=2), held=(0, 0, 0), speeds=(1.0, 0.5, 0.0))
    assert c.allows_on((1, 1, 0)) and c.allows_on((0, 0, 0)) and not c.allows_on((1, 0, 0))
    assert not c.allows_on((2, 0, 1)) and not c.allows_on((3, -1, 0))
    assert (c.usable((3, 2, 4)), replace(c, one_type=True).usable((3, 2, 4))) == (5, 3)
    equal = replace(c, one_type=True)
    assert equal.allows_on((2, 0, 0)) and not equal.allows_on((1, 1, 0))
    assert c.most_of((1, 9, 9)) == (1, 7, 0) and equal.most_of((1, 9, 9)) == (0, 8, 0)
    assert replace(c, sizes=(2, 4)).most_of((2, 1, 9)) == (2, 0, 0)


def test_plans_for_several_types_need_enough_nodes_of_each() -> None:
    one = replace(candidate(A, now=0), held=(0, 0), speeds=(1.0, 0.5))
    problem = Problem(5, 100, (one, replace(one, trainer=B)), types=("x", "y"), types_nodes=(3, 2))
    assert problem.feasible_on({A: (2, 1), B: (1, 1)}) and problem.feasible_on({B: (3, 2)})
    assert not problem.feasible_on({A: (2, 0), B: (2, 0)})
    assert problem.objective_on({A: (1, 0)}) == 1000
    plan = Plan(PlanStatus.INCUMBENT, ((A, 4),), 0.0, by_type=((A, (4, 0)),))
    assert not problem.permits(plan) and problem.permits(replace(plan, by_type=((A, (3, 1)),)))
