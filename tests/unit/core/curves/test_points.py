"""Points that are old, of another trainer, or that contradict each other."""

from __future__ import annotations

import math

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import GIVEN_ERROR, ON_SUMMIT, Estimate, MeasuredRate
from pilot.core.curves.measured import Measured, experience, learn
from pilot.core.curves.points import DRIFT, DRIFT_MOST, SCALE, for_another, joined, settled
from pilot.core.ids import TrainerId
from pilot.core.plan.objective import scaling_efficiency
from pilot.core.plan.problem import Candidate, Problem
from pilot.core.trainer.spec import TrainerSpec
from pilot.planners import dp

KEPT = (MeasuredRate(2, 6852.0, 0.03), MeasuredRate(3, 4774.0, 0.016))
"""What an earlier run of a script was measured on."""

SCALING = (MeasuredRate(1, 100.0, 0.02), MeasuredRate(4, 350.0, 0.02), MeasuredRate(16, 1200.0, 0.02))


def trainer(most: int = 4, known: tuple[MeasuredRate, ...] = (), curve: Curve | None = None) -> Measured:
    return Measured(TrainerSpec(TrainerId("t"), max_nodes=most, known=known, curve=curve))


def visit(measured: Measured, now_s: float, nodes: int, per_s: float, seconds: int = 60) -> None:
    """A group of ``nodes`` nodes reports once a second."""
    for second in range(seconds):
        measured.rate(now_s + second, nodes, per_s, generation=int(now_s))


def on(measured: Measured, nodes: int) -> Estimate:
    return next(e for e in measured.estimates() if e.nodes == nodes)


def contradictory() -> Measured:
    """Measured under different load: superlinear on two nodes, half as fast on three."""
    measured = trainer()
    for now_s, (nodes, per_s) in enumerate([(1, 129.6), (3, 180.4), (2, 359.5)]):
        visit(measured, 1000.0 * now_s, nodes, per_s)
    return measured


# --- age ------------------------------------------------------------------------------------------------------------


def test_a_rate_becomes_less_certain_with_time_but_causes_no_plan() -> None:
    measured = trainer()
    visit(measured, 0.0, 1, 100.0)
    visit(measured, 100.0, 2, 190.0)
    measured.learn()
    planned, fresh = measured.planned, on(measured, 1).error
    visit(measured, 3600.0, 2, 190.0)
    assert on(measured, 1).error == pytest.approx(math.hypot(fresh, DRIFT), rel=0.05)
    assert on(measured, 1).age_s == pytest.approx(3600, abs=60) and on(measured, 2).age_s == 0
    measured.learn(now_s=1e6)
    assert fresh < on(measured, 1).error < DRIFT_MOST + fresh, "bounded"
    assert measured.planned is planned


def test_a_rate_ages_for_users_while_no_plan_includes_its_trainer() -> None:
    measured = Measured(TrainerSpec(TrainerId("a"), max_nodes=8))
    measured.rate(100.0, 4, 350.0)
    (at_once,), (later,) = ([e for e in measured.estimates(now_s) if e.measured] for now_s in (100.0, 7300.0))
    assert (at_once.age_s, later.age_s) == (0.0, 7200.0)
    assert later.error == pytest.approx(math.hypot(at_once.error, DRIFT * math.sqrt(2)))


def test_after_a_day_a_new_visit_replaces_the_old_rate() -> None:
    soon, late = trainer(), trainer()
    for measured, again_s in ((soon, 120.0), (late, 86_400.0)):
        visit(measured, 0.0, 1, 100.0)
        visit(measured, again_s, 1, 104.0)
    assert 102 < soon.rates[1] < 103.5 < 103.9 < late.rates[1], "between two visits, or the new one"


def test_the_error_covers_the_scatter_that_was_seen() -> None:
    calm, loud = trainer(), trainer()
    for second in range(300):
        calm.rate(float(second), 1, 100.0)
        loud.rate(float(second), 1, 100.0 * (2.0 if second % 2 else 1.0))
    assert on(loud, 1).error > 1.5 * on(calm, 1).error
    alike, apart = trainer(), trainer()
    for measured, then in ((alike, 101.0), (apart, 140.0)):
        visit(measured, 0.0, 1, 100.0)
        visit(measured, 1000.0, 1, then)
    assert on(alike, 1).error < on(calm, 1).error < 0.03 < 0.1 < on(apart, 1).error


def test_a_trainer_is_expected_to_vary_as_much_between_visits_as_the_others() -> None:
    new, other = trainer(), trainer()
    visit(new, 0.0, 1, 100.0)
    alone = on(new, 1).error
    learn([new, trainer()], ON_SUMMIT, 100.0)
    assert on(new, 1).error == pytest.approx(alone, rel=0.02)
    for now_s, per_s in enumerate([100.0, 130.0, 100.0, 130.0, 100.0]):
        visit(other, 1000.0 * now_s, 1, per_s)
    learn([new, other], ON_SUMMIT, 100.0)
    assert 2 * alone < on(new, 1).error < on(other, 1).error


# --- contradictions ---------------------------------------------------------------------------------------------------


def test_rates_that_contradict_each_other_are_uncertain_and_replaced() -> None:
    measured = contradictory()
    assert [on(measured, n).error > 0.2 for n in (1, 2, 3)] == [True, False, True], "the newest is believed"
    visit(measured, 3000.0, 3, 500.0, seconds=20)
    assert measured.rates[3] > 480, "not the mean of both visits"
    agreeing = trainer()
    visit(agreeing, 0.0, 3, 180.4)
    visit(agreeing, 100.0, 2, 150.0)
    assert all(on(agreeing, n).error < 0.05 for n in (2, 3))


def test_a_rate_counts_as_at_most_linear_until_it_was_measured_twice() -> None:
    measured = trainer()
    visit(measured, 0.0, 1, 100.0)
    visit(measured, 100.0, 2, 230.0)
    visit(measured, 200.0, 1, 100.0)
    assert measured.curve.at(2) <= 200.0
    visit(measured, 300.0, 2, 230.0, seconds=1)
    assert measured.curve.at(2) <= 200.0, "one report is no visit"
    visit(measured, 400.0, 2, 230.0)
    assert (measured.curve.at(1), measured.curve.at(2)) == pytest.approx((100.0, 230.0))
    visit(measured, 500.0, 4, 440.0)
    assert measured.curve.at(4) == pytest.approx(440.0), "no more than linear from 2"


def test_the_rate_on_fewer_nodes_is_raised_if_that_on_more_is_certain() -> None:
    found = settled([MeasuredRate(1, 90.0, 0.1, visits=1), MeasuredRate(2, 200.0, 0.02, visits=2)], ON_SUMMIT)
    assert [p.per_s for p in found] == [100.0, 200.0]


def test_the_other_trainer_does_not_starve() -> None:
    """With these rates as measured, the second node of a was worth more than all that b could do."""
    measured = contradictory()
    visit(measured, 3000.0, 1, 129.6)
    values = (scaling_efficiency(TrainerSpec(TrainerId("t")), c) for c in (measured.curve, Curve.proportional()))
    a, b = (
        Candidate(TrainerId(name), now, 1, 4, value, 20.0, 10.0)
        for name, now, value in zip("ab", (2, 0), values, strict=True)
    )
    assert a.value_at(2) < 2.0
    assert dp.plan(Problem(2, 120.0, (a, b))).as_dict() == {"a": 1, "b": 1}


# --- what another trainer of the script measured ---------------------------------------------------------------------


def test_a_known_rate_stays_what_it_is_when_another_count_is_measured() -> None:
    """As a curve, these two points made 2 nodes 106 and 3 nodes 74 samples/s once one node was measured."""
    measured = trainer(3, for_another(KEPT, 86_400.0))
    assert not measured.guessed and on(measured, 2).by_other and not on(measured, 2).measured
    assert (on(measured, 2).per_s, on(measured, 3).per_s) == (6852.0, 4774.0)
    assert on(measured, 2).error > SCALE
    visit(measured, 0.0, 1, 5530.0)
    assert 6000 < on(measured, 2).per_s <= 2 * 5530 and on(measured, 2).error > 0.2
    visit(measured, 100.0, 2, 6500.0)
    assert on(measured, 2).measured and on(measured, 2).per_s == pytest.approx(6500.0)


def test_a_trainer_gets_the_nodes_on_which_its_script_was_faster_before() -> None:
    measured = trainer(3, for_another(KEPT, 86_400.0))
    visit(measured, 0.0, 1, 5530.0)
    value = scaling_efficiency(TrainerSpec(TrainerId("t")), measured.curve)
    candidate = Candidate(TrainerId("t"), 1, 1, 3, value, 20.0, 10.0)
    assert dp.plan(Problem(3, 120.0, (candidate,))).as_dict() == {"t": 2}


def test_a_faster_run_scales_what_is_known() -> None:
    measured = trainer(16, for_another(SCALING, 0.0))
    visit(measured, 0.0, 1, 200.0)
    assert on(measured, 1).per_s == pytest.approx(200.0)
    assert on(measured, 16).per_s == pytest.approx(2400.0, rel=0.1)
    assert 0.1 < on(measured, 16).error < 0.3


def test_what_is_known_may_be_slower_than_any_machine() -> None:
    known = (MeasuredRate(64, 1e-9, 0.1, 0), MeasuredRate(128, 1e-9, 0.1, 0))
    assert all(math.isfinite(p.per_s) for p in joined([MeasuredRate(1, 100.0, 0.05)], known, ON_SUMMIT))


def test_what_is_known_becomes_uncertain_where_own_rates_contradict_it() -> None:
    measured = trainer(16, for_another(SCALING, 0.0))
    visit(measured, 0.0, 1, 100.0)
    agreed = on(measured, 16).error
    visit(measured, 100.0, 4, 110.0)
    assert on(measured, 16).error > 2 * agreed
    assert measured.curve.at(4) == pytest.approx(110.0)


def test_the_known_age_and_are_passed_on_only_if_own() -> None:
    now, later = for_another(SCALING, 0.0), for_another(SCALING, 7200.0)
    assert all(p.visits == 0 and p.error > 0.1 for p in now)
    assert [p.error for p in later] > [p.error for p in now]
    assert for_another(now, 0.0) == ()
    assert joined((), now, ON_SUMMIT) == now and joined(SCALING, (), ON_SUMMIT) == SCALING


def test_a_given_curve_is_less_certain_if_its_shape_is_contradicted() -> None:
    measured = trainer(8, curve=Curve.of([(1, 10.0), (2, 19.0), (4, 36.0), (8, 64.0)]))
    visit(measured, 0.0, 1, 100.0)
    assert on(measured, 8).error == GIVEN_ERROR
    visit(measured, 100.0, 4, 180.0)
    assert on(measured, 8).error > 0.5
    assert on(measured, 8).per_s == pytest.approx(320.0, rel=1e-3), "its shape stays"


def test_a_script_that_ran_often_counts_once_in_the_priors_of_the_pool() -> None:
    def slow(script: str) -> Measured:
        measured = Measured(TrainerSpec(TrainerId("t"), script=script))
        visit(measured, 0.0, 1, 100.0)
        visit(measured, 100.0, 4, 120.0)
        return measured

    one, often, others = (experience([slow(s) for s in names], ON_SUMMIT, ON_SUMMIT) for names in ("a", "aaaa", "abcd"))
    assert one == often and others.ln_b.mean > one.ln_b.mean
    assert experience([slow(""), slow("")], ON_SUMMIT, ON_SUMMIT) != one, "not known to be one script"
