"""Which counts are worth measuring: those that make the model certain where plans need it, if that pays."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import ON_SUMMIT, MeasuredRate, Normal, Priors, fit
from pilot.core.curves.measured import Measured
from pilot.core.curves.profiles import CHANGES_KEPT, USEFUL_CHANGES, USEFUL_MOST_S, Changes
from pilot.core.curves.worth import Outlook, _possible, best_counts, counts_samples, node_price
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.objective import Objective, priority_weighted, scaling_efficiency, throughput
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer

CALM = Outlook((), ON_SUMMIT, tuple(range(1, 65)), 8.0, 0, 0, False, 18.0, 12.0, 1800.0)


@pytest.mark.parametrize("share", [2.0, 8.0, 30.0])
def test_an_unknown_trainer_is_measured_on_two_distant_counts(share: float) -> None:
    high, low = best_counts(replace(CALM, share=share))
    assert low == 1 and high >= 4


def test_known_or_soon_measured_curves_are_not_profiled() -> None:
    known = Priors(replace(ON_SUMMIT.ln_a, sd=0.2), replace(ON_SUMMIT.ln_b, sd=0.1))
    assert best_counts(replace(CALM, priors=known)) == ()
    assert best_counts(replace(CALM, lasts_s=60.0)) == ()
    points = tuple(MeasuredRate(n, 100 * n / (1 + 0.04 * math.log2(n))) for n in (1, 4, 16, 64))
    assert best_counts(replace(CALM, points=points)) == ()


def test_measured_counts_are_not_measured_again() -> None:
    counts = best_counts(replace(CALM, points=(MeasuredRate(1, 100.0, 0.01),), held=1))
    assert counts and min(counts) >= 4


def test_the_planned_count_is_not_profiled() -> None:
    one_known = replace(CALM, points=(MeasuredRate(1, 100.0, 0.01),), held=1)
    assert best_counts(replace(one_known, lasts_s=600.0)) == (), "its share of 8 nodes tells enough for so long"
    assert best_counts(one_known) == (32,), "and not 8, to which it comes next"


def test_cheap_or_lasting_measurements_are_preferred() -> None:
    short = replace(CALM, lasts_s=300.0)
    assert best_counts(short) == () != best_counts(replace(short, rescale_up_s=0.5, rescale_down_s=0.5))
    assert best_counts(replace(CALM, lasts_s=900.0))[0] < best_counts(replace(CALM, lasts_s=3600.0))[0]


def test_where_each_has_few_nodes_a_profile_disturbs_others_less_and_pays_sooner() -> None:
    short = replace(CALM, lasts_s=300.0, idle=4)
    assert best_counts(short) == ()
    assert best_counts(replace(short, share=1.5)) == (4, 1)


def test_a_less_certain_prior_is_measured_sooner() -> None:
    unsure = Priors(ON_SUMMIT.ln_a, Normal(-2.0, 2.0))
    short = replace(CALM, lasts_s=300.0)
    assert best_counts(short) == () != best_counts(replace(short, priors=unsure))


@pytest.mark.parametrize("covariance", [(0.09, 0.0, 4.0), (0.25, 0.3, 1.0), (0.25, -0.5, 1.0)])
def test_the_curves_that_stand_for_all_have_their_mean_and_covariance(covariance: tuple[float, float, float]) -> None:
    known = replace(fit([], ON_SUMMIT), covariance=covariance)
    curves = list(_possible(known, (-3.0, -2.0)))
    by_a, by_b = [a + 3.0 for a, _ in curves], [b + 2.0 for _, b in curves]
    assert (fmean(by_a), fmean(by_b)) == pytest.approx((0.0, 0.0))
    found = (
        fmean(a * a for a in by_a),
        fmean(a * b for a, b in zip(by_a, by_b, strict=True)),
        fmean(b * b for b in by_b),
    )
    assert found == pytest.approx(covariance)


@pytest.mark.parametrize(("sizes", "measured"), [((1, 3, 6, 12), {1, 12}), ((4, 5, 6, 7, 8, 9), {4, 9})])
def test_only_allowed_counts_are_measured(sizes: tuple[int, ...], measured: set[int]) -> None:
    counts = best_counts(replace(CALM, allowed=sizes, share=6.0, lasts_s=1e6))
    assert set(counts) == measured


def test_news_last_until_the_pool_has_changed_a_few_times() -> None:
    changes = Changes()
    assert changes.useful_s(0.0) == USEFUL_CHANGES * 600.0
    changes.note(400.0)
    assert changes.mean_s == pytest.approx(600.0 - 200.0 / CHANGES_KEPT)
    changes = Changes()
    for minute in range(1, 200):
        changes.note(60.0 * minute)
    assert changes.useful_s(60.0 * 199) == pytest.approx(USEFUL_CHANGES * 60.0, rel=0.01)
    assert changes.useful_s(60.0 * 199 + 300.0) == USEFUL_CHANGES * 300.0, "it has become calm"
    assert changes.useful_s(1e9) == USEFUL_MOST_S


CURVE = Curve.of([(1, 100.0), (2, 180.0), (4, 300.0), (8, 400.0)])


def trainer_on(name: str, nodes: int, factor: float = 1.0) -> Trainer:
    """A trainer that holds this many nodes and is ``factor`` times as fast as the curve above."""
    spec = TrainerSpec(TrainerId(name), 1, 8, CURVE.scaled(factor), fixed_curve=True)
    trainer = Trainer(spec, Measured(spec))
    trainer.target = [NodeId(f"{name}{n}") for n in range(nodes)]
    return trainer


def prices(objective: Objective, factor: float, held: int = 4) -> tuple[float, float]:
    slow, *others = trainer_on("slow", 0), trainer_on("a", held, factor), trainer_on("b", held, factor)
    found = node_price(slow, [slow, *others], 8, lambda trainer: trainer.value(objective))
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


def test_a_trainer_that_is_alone_or_worthless_has_no_node_price() -> None:
    alone, other = trainer_on("alone", 2), trainer_on("other", 2)
    assert node_price(alone, [alone], 8, lambda trainer: trainer.value(throughput)) is None
    nothing = Curve.of([(1, 0.0)])
    assert node_price(alone, [alone, other], 8, lambda t: nothing if t is alone else CURVE) is None


@pytest.mark.parametrize(
    ("objective", "counts"), [(throughput, True), (scaling_efficiency, False), (priority_weighted, False)]
)
def test_which_objectives_count_samples(objective: Objective, counts: bool) -> None:
    assert counts_samples(trainer_on("a", 1), objective) is counts
    given = TrainerSpec(TrainerId("given"), objective_curve=CURVE)
    assert not counts_samples(Trainer(given, Measured(given)), objective)


def test_the_price_is_the_lowest_that_balances_demand() -> None:
    """Each of two alike wants four of eight nodes where one costs 25 (what the next four would do each) to 60."""
    one, other = trainer_on("one", 0), trainer_on("other", 0)
    found = node_price(one, [one, other], 8, lambda trainer: trainer.value(throughput))
    assert found is not None
    assert (found.per_node, found.rate) == (pytest.approx(0.25, rel=1e-4), 3.0)
