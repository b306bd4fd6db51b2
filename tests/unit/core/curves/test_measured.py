import math

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import Estimate
from pilot.core.curves.measured import KEPT_OF_POOL, VISIT, Measured, RescaleCosts
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec

NOTHING = RescaleCosts(KEPT_OF_POOL)
"""Measured in a pool."""


def test_estimates_follow_the_measured_rates() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    assert measured.guessed
    assert 3.5 < measured.curve.at(4) < 4, "not quite proportional"
    measured.rate(0.0, 2, 100.0)
    assert (measured.guessed, measured.curve.at(2)) == (False, 100)
    assert 180 < measured.curve.at(4) < 200
    measured.rate(10.0, 4, 120.0)
    assert (measured.curve.at(2), measured.curve.at(4)) == (100, 120)
    assert measured.curve.at(8) < 240
    assert [e.nodes for e in measured.estimates() if e.measured] == [2, 4]


def test_a_rate_is_the_mean_over_the_time_that_it_was_measured() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    for now_s, per_s in ((0.0, 400.0), (15.0, 100.0), (24.0, 100.0)):
        measured.rate(now_s, 1, per_s)
    assert measured.rates[1] == pytest.approx(100 * 4 ** (1 / 25), rel=1e-3)
    steady = Measured(TrainerSpec(TrainerId("t")))
    for now_s in (0.0, 15.0, 24.0):
        steady.rate(now_s, 1, 100.0)
    (error,) = (e.error for e in steady.estimates() if e.measured)
    assert error == pytest.approx(math.sqrt(0.02**2 + 2 * VISIT**2), rel=0.01), "its own visit's, and the next one's"
    for now_s in range(100, 10_000, 100):  # its script has become slower
        measured.rate(now_s, 1, 50.0)
    assert measured.rates[1] == pytest.approx(50, rel=1e-3)


def test_a_curve_moves_by_more_than_its_error_or_from_a_guess() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    measured.learn()
    assert not measured.moved
    measured.rate(0.0, 1, 100.0)
    assert measured.moved, "it was a guess"
    measured.learn()
    planned = measured.planned
    for now_s in range(1, 100):
        measured.rate(now_s, 1, 100.0 + 3 * (-1) ** now_s)
        assert not measured.moved
    measured.learn()
    assert measured.planned is planned, "noise makes no new problem"
    measured.rate(101.0, 16, 100.0)
    assert measured.moved
    measured.learn()
    assert measured.planned.at(8) == pytest.approx(100, rel=0.01), "no faster than on 16 nodes, no slower than on one"


def test_a_given_curve_keeps_its_shape() -> None:
    given = Curve.of([(1, 10.0), (2, 19.0), (4, 20.0), (8, 16.0)])
    measured = Measured(TrainerSpec(TrainerId("t"), max_nodes=8, curve=given))
    assert measured.curve == given
    measured.learn()
    measured.rate(0.0, 2, 38.0)
    assert measured.moved
    assert [measured.curve.at(n) for n in (1, 2, 4, 8)] == pytest.approx([20, 38, 40, 32])


def test_a_slow_trainers_rate_counts_and_none_is_no_measure() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    measured.rate(0.0, 1, 0.25)
    measured.rate(1.0, 2, 0.0)
    assert measured.rates == {1: 0.25}
    measured.learn()
    measured.rate(2.0, 1, 0.26)
    assert not measured.moved, "a few percent are noise, however slow it is"
    measured.rate(3.0, 1, 2.5)
    assert measured.moved


def test_a_fixed_curve_ignores_measured_rates_but_reports_them() -> None:
    given = Curve.of([(1, 5.0)])
    measured = Measured(TrainerSpec(TrainerId("t"), curve=given, fixed_curve=True, rescale_up_s=7.0))
    measured.learn()
    measured.rate(0.0, 2, 100.0)
    measured.cost(grew=True, seconds=1.0)
    assert measured.curve == measured.planned == given
    assert measured.estimates() == (Estimate(1, 5.0, error=0.0, measured=False),), "what is given is no measurement"
    assert not measured.moved
    assert measured.rates == {2: 100.0}
    assert measured.rescale_s(NOTHING, up=True) == 7.0


def test_costs_are_medians_of_the_last_ones() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    for seconds in (100.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        measured.cost(grew=True, seconds=seconds)
    assert measured.rescale_s(NOTHING, up=True) == 3.0
    assert measured.rescale_s(NOTHING, up=False) == 10.0


def test_measured_costs_of_the_pool_precede_assumed_ones() -> None:
    pool = RescaleCosts(KEPT_OF_POOL)
    for seconds in (0.4, 0.6, 30.0):
        pool.note(up=True, seconds=seconds)
    given, assumed = (Measured(TrainerSpec(TrainerId("t"), assumed_costs=assumed)) for assumed in (False, True))
    assert (given.rescale_s(pool, up=True), assumed.rescale_s(pool, up=True)) == (20.0, 0.6)
    assert assumed.rescale_s(pool, up=False) == 10.0, "nobody has measured that yet"
    assumed.cost(grew=True, seconds=5.0)
    assert assumed.rescale_s(pool, up=True) == 5.0


def test_a_refreshed_curve_is_planned_with_however_little_it_has_moved() -> None:
    measured = Measured(TrainerSpec(TrainerId("a")))
    measured.rate(0.0, 1, 100.0)
    measured.learn()
    for second in range(1, 60):
        measured.rate(float(second), 1, 101.0)
    measured.learn()
    assert not measured.moved and measured.planned.at(1) == 100.0
    measured.refresh()
    measured.learn()
    assert 100.0 < measured.planned.at(1) <= 101.0


def test_fewer_nodes_than_were_ever_measured_are_not_faster() -> None:
    measured = Measured(TrainerSpec(TrainerId("a"), 4, 12))
    measured.rate(0.0, 4, 400.0)
    measured.rate(100.0, 8, 400.0)
    assert all(measured.curve.at(n) <= measured.curve.at(4) for n in (1, 2, 3))
