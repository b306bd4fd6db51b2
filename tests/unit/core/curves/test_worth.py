"""Which count is worth measuring: one that may change the plan, if that gains more than it costs."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import ON_SUMMIT, WIDE, MeasuredRate, Normal, curve_of, estimates
from pilot.core.curves.measured import Measured
from pilot.core.curves.profiles import CALM_S, CHANGES_KEPT, Changes
from pilot.core.curves.worth import MEASURED_ERROR, NodePrice, Outlook, Prices, _covariance, _Market, best_count
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.objective import Objective, per_node_value, scaling_efficiency, throughput
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer

SPEC = TrainerSpec(TrainerId("any"))


def outlook(points: dict[int, float], most: int = 8, least: int = 1, **more: object) -> Outlook:
    """A trainer that was measured on these counts and holds the last, in a calm pool whose nodes others want."""
    known = tuple(MeasuredRate(n, rate, MEASURED_ERROR) for n, rate in sorted(points.items()))
    given = Outlook(
        points=known,
        curve=curve_of(estimates(known, None, ON_SUMMIT, most)),
        value=lambda curve: scaling_efficiency(SPEC, curve),
        allowed=tuple(range(least, most + 1)),
        most=most,
        held=list(points)[-1],
        idle=0,
        alone=False,
        rescale_up_s=18.0,
        rescale_down_s=12.0,
        forward_s=120.0,
        lasts_s=3600.0,
        price=NodePrice(0.9, 3.0),
    )
    return replace(given, **more)  # type: ignore[arg-type]  # any of its fields


@pytest.mark.parametrize("most", [2, 3, 8, 64])
def test_whatever_the_range_a_trainer_measured_on_one_count_is_measured_on_another(most: int) -> None:
    assert best_count(outlook({2: 190.0} if most == 2 else {3: 280.0}, most)) not in (None, 2 if most == 2 else 3)


def test_what_does_not_last_or_costs_much_is_not_measured() -> None:
    calm = outlook({3: 280.0})
    assert best_count(calm) is not None
    assert best_count(replace(calm, lasts_s=40.0)) is None
    assert best_count(replace(calm, rescale_up_s=3000.0, rescale_down_s=3000.0)) is None, "a restart, for instance"


def test_where_trainers_turned_out_alike_less_is_worth_measuring() -> None:
    assert best_count(outlook({3: 280.0}, lasts_s=600.0)) is not None
    assert best_count(outlook({3: 280.0}, lasts_s=600.0, doubt=0.2)) is None


def test_doubt_falls_with_the_spread_of_the_pools_trainers_only() -> None:
    trainer = Measured(SPEC)
    assert trainer.doubt == 1.0
    trainer.learn(priors=replace(ON_SUMMIT, ln_b=Normal(-3.0, 0.25)))
    assert trainer.doubt == 0.25
    trainer.learn(priors=WIDE)
    assert trainer.doubt == 1.0


def test_a_users_objective_that_knows_no_rates_is_hardly_asked() -> None:
    asked: list[int] = []
    objective = per_node_value(lambda _, nodes: float(asked.append(nodes) or nodes))
    assert (
        best_count(outlook({3: 280.0}, value=lambda curve: objective(TrainerSpec(TrainerId("t"), 1, 8), curve))) is None
    )
    assert len(asked) == 2 * 8


def test_one_that_could_have_no_other_count_or_uses_up_its_share_is_not_measured() -> None:
    assert best_count(outlook({1: 100.0}, most=1)) is None
    calm = outlook({3: 280.0})
    assert best_count(replace(calm, most_node_s=30.0)) is None, "even one node takes 12 s and 20 s"
    assert best_count(replace(calm, most_node_s=33.0)) == 1
    assert best_count(replace(calm, most=2)) in (1, 2)


def test_a_price_that_leaves_no_choice_makes_measuring_useless() -> None:
    for per_node in (0.01, 50.0):
        assert best_count(outlook({1: 100.0, 8: 700.0}, price=NodePrice(per_node, 3.0))) is None


def test_counts_that_agree_end_it_and_a_contradiction_begins_it_again() -> None:
    points = {n: 100.0 * n / (1 + 0.02 * math.log2(n)) for n in range(1, 9)}
    known = outlook(points, lasts_s=1e6)
    assert best_count(known) is None, "every count was measured"
    doubted = tuple(replace(p, error=0.3) if p.nodes == 4 else p for p in known.points)
    assert best_count(replace(known, points=doubted)) == 4


def test_of_many_counts_those_between_powers_of_two_are_considered_where_the_rate_stops_rising() -> None:
    powers = {1: 100.0, 2: 198.0, 4: 390.0, 16: 800.0, 32: 810.0, 64: 815.0, 8: 760.0}
    calm = outlook(powers, most=64, lasts_s=1e6, price=NodePrice(0.5, 3.0))
    assert best_count(calm) in (5, 6, 9, 10, 12)


def test_a_value_that_does_not_depend_on_the_curve_is_not_worth_measuring() -> None:
    fixed = Curve.of([(1, 1.0), (8, 7.0)])
    assert best_count(outlook({3: 280.0}, value=lambda _curve: fixed, lasts_s=1e6)) is None


def test_a_measured_rate_makes_its_neighbours_more_certain() -> None:
    curve = Curve.proportional(100.0)
    counts = (1, 2, 4, 8, 16)
    before = _covariance(counts, [MeasuredRate(1, 100.0, 0.02)], curve)
    after = _covariance(counts, [MeasuredRate(1, 100.0, 0.02), MeasuredRate(4, 400.0, 0.02)], curve)
    assert [row[i] for i, row in enumerate(before)] == sorted(row[i] for i, row in enumerate(before))
    assert after[2][2] <= 0.02**2 < after[1][1] < before[1][1]
    assert after[3][3] < before[3][3]
    assert before[1][4] > 0


def test_where_a_curve_has_bent_what_lies_between_is_less_certain() -> None:
    points = [MeasuredRate(8, 800.0, 0.02), MeasuredRate(32, 1200.0, 0.02)]
    bent, straight = Curve.of([(8, 800.0), (32, 1200.0)]), Curve.proportional(100.0)
    assert _covariance((16,), points, bent)[0][0] > 4 * _covariance((16,), points, straight)[0][0]


def test_no_assumed_curve_is_superlinear_from_a_measured_count() -> None:
    market = _Market.of(outlook({2: 190.0, 4: 300.0}))
    curve = market._curve([0.8] * len(market.counts))
    assert curve.at(8) / 8 <= 75.0 and 75.0 <= curve.at(3) / 3 <= 95.0
    assert curve.at(1) == max(curve.at(n) / n for n in market.counts)


def test_plans_stay_where_a_rescale_does_not_pay() -> None:
    held = outlook({1: 100.0, 8: 500.0, 4: 300.0}, price=NodePrice(0.48, 3.0))
    assert _Market.of(held).planned == 4
    assert _Market.of(replace(held, forward_s=1e6)).planned != 4


def test_what_was_on_the_way_costs_nothing() -> None:
    market = _Market.of(outlook({1: 100.0}, price=NodePrice(0.1, 3.0)))
    assert market.planned > 2
    assert market.cost(market.planned) == 0.0 < market.cost(2)
    assert _Market.of(outlook({1: 100.0}, price=NodePrice(0.1, 3.0), alone=True)).cost(2) < market.cost(2)


def test_a_pool_stays_calm_for_the_mean_time_or_as_long_as_it_has_been() -> None:
    changes = Changes()
    assert changes.calm_s(0.0) == 600.0
    changes.note(400.0)
    assert changes.mean_s == pytest.approx(600.0 - 200.0 / CHANGES_KEPT)
    changes = Changes()
    for minute in range(1, 200):
        changes.note(60.0 * minute)
    assert changes.calm_s(60.0 * 199) == pytest.approx(60.0, rel=0.01)
    assert changes.calm_s(60.0 * 199 + 1e5) == 1e5, "it has become calm"
    changes.note(1e6)
    assert changes.mean_s < CALM_S / CHANGES_KEPT + 60.0


CURVE = Curve.of([(1, 100.0), (2, 180.0), (4, 300.0), (8, 400.0)])


def trainer_on(name: str, nodes: int, factor: float = 1.0) -> Trainer:
    """A trainer that holds this many nodes and is ``factor`` times as fast as the curve above."""
    spec = TrainerSpec(TrainerId(name), 1, 8, CURVE.scaled(factor), fixed_curve=True)
    trainer = Trainer(spec, Measured(spec))
    trainer.target = [NodeId(f"{name}{n}") for n in range(nodes)]
    return trainer


def prices(objective: Objective, factor: float, held: int = 4) -> tuple[float, float]:
    slow, *others = trainer_on("slow", 0), trainer_on("a", held, factor), trainer_on("b", held, factor)
    found = Prices([slow, *others], 8, lambda trainer: trainer.value(objective)).to_others(slow.id)
    assert found is not None
    return found.per_node, found.rate


def test_among_equals_all_want_their_share_at_the_price() -> None:
    per_node, rate = prices(scaling_efficiency, 1.0, held=1)
    assert 0.25 <= per_node <= 0.8, "what the curve gains around three of eight nodes"
    assert rate == pytest.approx(2.4, abs=0.7)


def test_to_a_slow_trainer_the_nodes_of_fast_ones_are_dear_if_samples_count() -> None:
    fast, alike = prices(throughput, 10.0), prices(throughput, 1.0)
    assert fast[0] >= 6.0, "two fast ones lose 600 samples with their last nodes; on one, it does 100"
    assert fast[0] > 5 * alike[0] and fast[1] > 5 * alike[1]
    assert prices(scaling_efficiency, 10.0) == pytest.approx(prices(scaling_efficiency, 1.0))


def test_nodes_are_free_to_one_that_is_alone_and_have_no_price_in_units_of_nothing() -> None:
    alone, other = trainer_on("alone", 2), trainer_on("other", 2)
    assert Prices([alone], 8, lambda t: t.value(throughput)).to_others(alone.id) == NodePrice(0.0, 0.0)
    nothing = Curve.of([(1, 0.0)])
    assert Prices([alone, other], 8, lambda t: nothing if t is alone else CURVE).to_others(alone.id) is None


def test_the_price_is_the_lowest_that_balances_demand() -> None:
    """Each of two alike wants four of eight nodes where one costs 25 (what the next four would do each) to 60."""
    one, other = trainer_on("one", 0), trainer_on("other", 0)
    found = Prices([one, other], 8, lambda trainer: trainer.value(throughput)).to_others(one.id)
    assert found is not None
    assert (found.per_node, found.rate) == (pytest.approx(0.25, rel=1e-4), 3.0)
