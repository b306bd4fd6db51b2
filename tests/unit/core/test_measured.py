from pilot.core.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.measured import KEPT_OF_POOL, Measured, RescaleCosts
from pilot.core.spec import TrainerSpec

NOTHING = RescaleCosts(KEPT_OF_POOL)
"""Measured in a pool."""


def test_measured_points_replace_the_assumption() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    assert measured.curve.at(4) == 4
    measured.rate(2, 100.0)
    assert measured.curve.at(2) == 100
    assert measured.curve.at(4) == 200
    measured.rate(4, 120.0)
    measured.rate(2, 90.0)
    assert measured.curve == Curve.of([(2, 90.0), (4, 120.0)])


def test_a_slow_trainers_rate_counts_and_none_is_no_measure() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    measured.rate(1, 0.25)
    measured.rate(2, 0.0)
    assert measured.rates == {1: 0.25}


def test_a_fixed_curve_stays_and_the_rates_are_still_told() -> None:
    given = Curve.of([(1, 5.0)])
    measured = Measured(TrainerSpec(TrainerId("t"), curve=given, fixed_curve=True, rescale_up_s=7.0))
    measured.rate(2, 100.0)
    measured.cost(grew=True, seconds=1.0)
    assert measured.curve == given
    assert measured.rates == {2: 100.0}
    assert measured.rescale_s(NOTHING, up=True) == 7.0


def test_costs_are_medians_of_the_last_ones() -> None:
    measured = Measured(TrainerSpec(TrainerId("t")))
    for seconds in (100.0, 1.0, 2.0, 3.0, 4.0, 5.0):
        measured.cost(grew=True, seconds=seconds)
    assert measured.rescale_s(NOTHING, up=True) == 3.0
    assert measured.rescale_s(NOTHING, up=False) == 10.0


def test_what_the_pool_measured_is_believed_before_what_is_only_assumed() -> None:
    pool = RescaleCosts(KEPT_OF_POOL)
    for seconds in (0.4, 0.6, 30.0):
        pool.note(up=True, seconds=seconds)
    told, assumed = (Measured(TrainerSpec(TrainerId("t"), assumed_costs=assumed)) for assumed in (False, True))
    assert (told.rescale_s(pool, up=True), assumed.rescale_s(pool, up=True)) == (20.0, 0.6)
    assert assumed.rescale_s(pool, up=False) == 10.0, "nobody has measured that yet"
    assumed.cost(grew=True, seconds=5.0)
    assert assumed.rescale_s(pool, up=True) == 5.0
