"""How fast trainers are on types of nodes: measured, expected from others, or given."""

from __future__ import annotations

import math
import random

import pytest

from pilot.core.curves.speeds import NO_LEVELS, SLOW_SHARE, Speeds, TypeRate, type_levels
from pilot.core.ids import NodeId

NODES = [NodeId(f"n{i}") for i in range(8)]


def measured(speeds: Speeds, equal: bool = False, **rates: list[float]) -> None:
    """A group with these rates of nodes, by type."""
    per_s = {NodeId(f"{kind}{i}"): rate for kind, of in rates.items() for i, rate in enumerate(of)}
    kinds = {NodeId(f"{kind}{i}"): kind for kind, of in rates.items() for i in range(len(of))}
    speeds.refer(kinds.values())
    speeds.note(len(per_s), per_s, kinds, equal=equal)


def of(**per_s: float) -> Speeds:
    """A trainer that was measured on these types."""
    return Speeds(next(iter(per_s)), {kind: TypeRate(math.log(rate), 30) for kind, rate in per_s.items()}, len(per_s))


def test_the_reference_is_the_type_that_was_measured_first() -> None:
    speeds = Speeds()
    measured(speeds, a=[10.0, 12.0, 11.0], b=[22.0])
    measured(speeds, b=[22.0, 22.0])
    found = speeds.on(["a", "b"], NO_LEVELS, {})
    assert speeds.reference == "a"
    assert (found["a"].value, found["a"].error) == (1.0, 0.0)
    assert found["b"].value == pytest.approx(2.0)
    assert found["b"].measured


def test_errors_fall_with_the_number_of_rates() -> None:
    speeds, errors = Speeds(), []
    for _ in range(5):
        measured(speeds, a=[10.0] * 4, b=[5.0] * 2)
        errors.append(speeds.on(["b"], NO_LEVELS, {})["b"].error)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.8 * errors[-1]


def test_where_shares_follow_rates_a_group_of_another_size_says_nothing_about_types() -> None:
    speeds = Speeds()
    measured(speeds, a=[10.0, 10.0], b=[20.0, 20.0])
    for _ in range(20):
        measured(speeds, a=[5.0] * 8)  # the same batch on more nodes: all rates fall
    assert speeds.on(["b"], NO_LEVELS, {})["b"].value == pytest.approx(2.0)
    with_equal_shares = Speeds()
    measured(with_equal_shares, equal=True, a=[10.0, 10.0])
    measured(with_equal_shares, equal=True, b=[20.0] * 8)
    assert with_equal_shares.on(["b"], NO_LEVELS, {})["b"].value == pytest.approx(2.0)


def test_a_type_where_a_trainer_was_not_measured_is_as_fast_as_for_the_others_but_less_so() -> None:
    for count, at_least in ((0, 1.0), (1, 1.3), (10, 1.85)):
        levels = type_levels([of(a=100.0, b=200.0)] * count)
        found = of(a=7.0).on(["a", "b"], levels, {})["b"]
        assert at_least <= found.value < 2.0
        assert not found.measured
    few, many = (type_levels([of(a=100.0, b=200.0)] * n) for n in (1, 20))
    errors = [of(a=7.0).on(["b"], levels, {})["b"].error for levels in (NO_LEVELS, few, many)]
    assert errors == sorted(errors, reverse=True)


def test_trainers_with_different_references_are_combined() -> None:
    """Nobody was measured on a and c, but some on a and b, and others on b and c."""
    levels = type_levels([of(a=10.0, b=20.0)] * 20 + [of(c=3.0, b=1.5)] * 20)
    found = of(a=50.0).on(["a", "b", "c"], levels, {})
    assert found["b"].value == pytest.approx(2.0, rel=0.1)
    assert found["c"].value == pytest.approx(4.0, rel=0.2)


def test_the_fit_finds_the_levels_of_types_in_noise() -> None:
    chance = random.Random(3)
    truth = {"a": 1.0, "b": 2.5, "c": 0.4}
    trainers = []
    for _ in range(60):
        kinds, level = chance.sample("abc", 2), 10 ** chance.uniform(0, 4)
        trainers.append(of(**{k: level * truth[k] * math.exp(chance.gauss(0, 0.2)) for k in kinds}))
    levels = type_levels(trainers)
    for kind in "bc":
        expected = of(a=1.0).on([kind], levels, {})[kind].value
        assert expected == pytest.approx(truth[kind], rel=0.15)


def test_given_speeds_count_and_slow_nodes_are_relative_to_them() -> None:
    given = {"a": 1.0, "b": 3.0}
    found = of(a=10.0).on(["a", "b", "b/slow"], NO_LEVELS, given)
    assert [found[kind].value for kind in found] == pytest.approx([1.0, 3.0, 3.0 * SLOW_SHARE])
    seen = Speeds("b", {"b": TypeRate(0.0, 30), "b/slow": TypeRate(math.log(0.5), 30)})
    assert seen.on(["b/slow"], NO_LEVELS, given)["b/slow"].value == pytest.approx(1.5)


def test_the_speeds_in_problems_stay_until_one_has_moved_by_more_than_its_error() -> None:
    speeds = of(a=100.0, b=200.0)

    def planned() -> float:
        return speeds.plan_with(speeds.on(["a", "b"], NO_LEVELS, {}))["b"]

    assert planned() == pytest.approx(2.0)
    speeds.rates["b"] = TypeRate(math.log(206.0), 30)
    assert not speeds.moved({})
    assert planned() == pytest.approx(2.0)
    speeds.rates["b"] = TypeRate(math.log(240.0), 30)
    assert speeds.moved({})
    assert planned() == pytest.approx(2.4)


def test_a_node_is_compared_with_the_others_of_its_type() -> None:
    def shares(speeds: Speeds, kinds: str, *rates: float) -> list[float | None]:
        nodes = NODES[: len(rates)]
        found = speeds.shares(dict(zip(nodes, rates, strict=True)), dict(zip(nodes, [*kinds.split()], strict=True)))
        return [found.get(node) for node in nodes]

    assert shares(Speeds(), "a a a b", 10.0, 10.0, 5.0, 3.0) == [1.0, 1.0, 0.5, None]
    assert shares(Speeds(), "a a", 10.0, 5.0) == [2.0, 0.5]
    assert shares(Speeds(), "a a/slow", 10.0, 5.0) == [None, 0.5], "slow nodes say nothing about their type"
    known = of(a=10.0, b=20.0)
    assert shares(known, "a b b", 4.0, 16.0, 16.0)[0] == pytest.approx(0.5), "relative to the other type's nodes"
    assert shares(known, "a", 5.0) == [None], "alone, the same batch is another share"
    known.nodes = 1
    assert shares(known, "a", 5.0)[0] == pytest.approx(0.5)
