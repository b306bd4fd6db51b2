"""Who shares the pool: the shortest prefix of the queue that is worth nearly as much as all of it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pilot import planners
from pilot.core.curves.curve import Curve
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.planners import admission
from tests.unit.planners.problems import best_value, candidate, problem

FLAT = Curve.of([(1, 10.0), (8, 10.0)])
SHARE = 0.97


def planned(given: Problem, share: float = SHARE) -> tuple[list[str], str | None]:
    """Who is planned for, and the first who is not."""
    plan = planners.make("dp")(replace(given, queue_share=share))
    assert given.feasible(plan.as_dict())
    return [trainer for trainer, _ in plan.counts], plan.first_out


def worth(given: Problem, length: int) -> float:
    """The optimum for the first ``length`` candidates if they begin from 0 nodes and pay for it."""
    anew = []
    for c in given.candidates[:length]:
        charged = c.value.scaled(1 - min(c.rescale_up_s / given.t_fwd_s, 0.5))
        anew.append(replace(c, current_nodes=0, value=charged))
    return best_value(replace(given, candidates=tuple(anew)))


def test_the_prefix_is_the_shortest_that_reaches_the_share_unless_nodes_are_left_for_the_next() -> None:
    rng, cut = random.Random(5), 0
    for _ in range(60):
        rates = sorted(rng.uniform(5, 20) for _ in range(3))
        each = [
            candidate(0, low := rng.randint(1, 2), rng.randint(low, 3), Curve.of(zip((1, 2, 3), rates, strict=True)))
            for _ in range(5)
        ]
        given = problem(rng.randint(1, 9), *each)
        share = rng.choice((0.7, 0.9, SHARE))
        names, first_out = planned(given, share)
        shorter = [k for k in range(len(names)) if worth(given, k) >= share * worth(given, 5) * (1 + 1e-9)]
        fits = [any(c.min_nodes <= given.nodes for c in given.candidates[k:]) for k in shorter]
        assert worth(given, len(names)) >= share * worth(given, 5) * (1 - 1e-9)
        assert not shorter or any(fits), "a shorter one is worth as much, and leaves no nodes over"
        assert (first_out is None) == (len(names) == 5)
        cut += first_out is not None
    assert cut > 10


def test_one_that_needs_long_to_start_is_worth_less() -> None:
    steady = Curve.of([(1, 10.0), (2, 16.0)])
    quick, slow = candidate(high=2, curve=steady, up_s=0.0), candidate(high=2, curve=steady, up_s=50.0)
    assert planned(problem(2, quick, quick), 0.85) == (["a", "b"], None), "20 instead of 16"
    assert planned(problem(2, quick, slow), 0.95) == (["a"], "b"), "15.8 instead of 16"


def test_all_that_hold_nodes_or_are_pinned_are_planned_for() -> None:
    many = [candidate(curve=FLAT, high=1) for _ in range(2)]
    held, pinned = candidate(1, curve=FLAT), replace(candidate(curve=FLAT), pin=1)
    idle = [candidate(curve=Curve.of([(1, 0.0), (8, 0.0)])) for _ in range(2)]
    assert planned(problem(2, *many, *idle, held, pinned)) == (["a", "b", "e", "f"], "c")


def test_the_next_starts_on_nodes_that_would_stay_idle() -> None:
    wide = candidate(high=64, curve=Curve.proportional())
    small = candidate(high=1, curve=Curve.of([(1, 0.5)]))
    assert planned(problem(64, wide, small)) == (["a"], "b")
    assert planned(problem(65, wide, small, small)) == (["a", "b"], "c"), "it is worth less than 3%"
    two = candidate(low=2, high=2, curve=Curve.of([(2, 0.5)]))
    assert planned(problem(65, wide, two, small, small)) == (["a", "b", "c"], "d"), "and all before it are in, too"
    assert planned(problem(65, wide, two)) == (["a"], "b"), "it cannot start on one node"


def test_where_growing_does_not_pay_the_next_starts_instead() -> None:
    runs = candidate(4, high=64, up_s=1000.0)
    assert planned(problem(8, runs, candidate(), candidate(), candidate())) == (["a", "b"], "c")
    kept = Plan(PlanStatus.KEPT, (), 0.0)
    made = admission.plan(replace(problem(8, candidate(4), candidate()), queue_share=SHARE), lambda _: kept)
    assert made.first_out == "b", "a planner that found nothing is not asked again"


def test_who_shares_the_pool_does_not_depend_on_how_long_plans_take(monkeypatch: pytest.MonkeyPatch) -> None:
    at_s, step_s, sizes = [0.0], [0.25], list[int]()

    def slow(given: Problem) -> Plan:
        at_s[0] += step_s[0]
        sizes.append(len(given.candidates))
        return Plan(PlanStatus.OPTIMAL, tuple((c.trainer, 0) for c in given.candidates), 0.0)

    monkeypatch.setattr(admission.time, "monotonic", lambda: at_s[0])
    given = replace(problem(2, *(candidate(curve=FLAT, high=1) for _ in range(8))), queue_share=SHARE)
    made = admission.plan(given, slow)
    assert (sizes, made.first_out, made.build_s) == ([2, 3, 5, 8], None, 1.0), "each time for twice as many more"
    step_s[0] = 1.0
    assert admission.plan(given, slow).first_out == "d", "unless each takes so long that the pool would not wait"


def test_all_are_planned_for_if_it_would_take_too_long_to_find_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(1, candidate(curve=FLAT), candidate(curve=FLAT))
    assert planned(given) == (["a"], "b")
    monkeypatch.setattr(admission, "LIMIT_S", 1e-9)
    assert planned(given) == (["a", "b"], None)


@pytest.mark.parametrize("nodes", [0, 1, 5, 31, 32, 33, 300])
def test_prefixes_are_valued_once_for_pools_of_about_the_same_size(nodes: int) -> None:
    curve = Curve.of([(1, 1.0), (4, 3.0)])
    given = problem(nodes, *(candidate(high=4, curve=curve) for _ in range(8)))
    admission._prefixes.cache_clear()
    worths, left_over = admission._worths(given)
    exact = [_best(given.candidates[:length], nodes) for length in range(9)]
    assert [round(w / worths[1], 6) if nodes else w for w in worths] == [
        round(e / exact[1], 6) if nodes else 0 for e in exact
    ]
    assert left_over == [max(0, nodes - 4 * length) for length in range(9)]
    admission._worths(replace(given, nodes=max(0, nodes - 1)))
    assert admission._prefixes.cache_info().misses <= 2


def _best(candidates: tuple[Candidate, ...], nodes: int) -> float:
    """The optimum of 1 for the first node and 2/3 for each of the three others of a candidate."""
    firsts = min(len(candidates), nodes)
    return firsts + min(3 * len(candidates), nodes - firsts) * 2 / 3


def test_a_trainer_starts_where_all_nodes_leave_soon() -> None:
    alone = replace(problem(0, candidate(high=2, curve=Curve.of([(1, 10.0), (2, 19.0)]))), ending=2, ends_in_s=99.0)
    made = planners.make("dp")(replace(alone, t_fwd_s=120.0, queue_share=SHARE))
    assert (made.counts, made.ending, made.first_out) == ((("a", 2),), (("a", 2),), None)
