"""A node's price for a trainer is what it is worth to the others, in units of its own rate on one node."""

from __future__ import annotations

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import Measured
from pilot.core.curves.worth import counts_samples, node_price
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.objective import Objective, priority_weighted, scaling_efficiency, throughput
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer

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


def test_nobody_pays_who_is_alone_or_worth_nothing() -> None:
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


def test_of_the_prices_at_which_all_nodes_are_wanted_it_is_the_lowest() -> None:
    """Each of two alike wants four of eight nodes where one costs 25 (what the next four would do each) to 60."""
    one, other = trainer_on("one", 0), trainer_on("other", 0)
    found = node_price(one, [one, other], 8, lambda trainer: trainer.value(throughput))
    assert found is not None
    assert (found.per_node, found.rate) == (pytest.approx(0.25, rel=1e-4), 3.0)
