"""How fast trainers are on types of nodes: measured, expected from others, or given."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from pilot.core.curves import speeds as curves_speeds
from pilot.core.curves.speeds import SLOW_SHARE, Speed, Speeds
from pilot.core.ids import NodeId

NODES = [NodeId(f"n{i}") for i in range(8)]


def speed(its: Speeds, kind: str, others: Sequence[Speeds], given: Mapping[str, float]) -> Speed:
    return curves_speeds.speed(its, kind, lambda: others, given)


def of(**per_s: float) -> Speeds:
    """A trainer that was measured on these types, the first of which is its reference."""
    speeds = Speeds()
    for kind, rate in per_s.items():
        speeds.refer([kind])
        speeds.note(1, {kind: [rate] * 30}, equal=True)
    return speeds


def measured(speeds: Speeds, **rates: list[float]) -> None:
    """A group with these rates of nodes, whose shares follow them."""
    speeds.refer([kind for kind in rates for _ in rates[kind]])
    speeds.note(sum(map(len, rates.values())), rates, equal=False)


def test_the_reference_is_the_type_that_was_measured_first() -> None:
    speeds = Speeds()
    measured(speeds, a=[10.0, 12.0, 11.0], b=[22.0])
    measured(speeds, b=[22.0, 22.0])
    assert (speeds.reference, speed(speeds, "a", (), {}).value, speed(speeds, "a", (), {}).error) == ("a", 1.0, 0.0)
    assert speed(speeds, "b", (), {}).value == pytest.approx(2.0)
    assert speed(speeds, "b", (), {}).measured


def test_errors_fall_with_the_number_of_rates() -> None:
    speeds, errors = Speeds(), []
    for _ in range(5):
        measured(speeds, a=[10.0] * 4, b=[5.0] * 2)
        errors.append(speed(speeds, "b", (), {}).error)
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 1.8 * errors[-1]


def test_where_shares_follow_rates_a_group_of_another_size_says_nothing_about_types() -> None:
    speeds = Speeds()
    measured(speeds, a=[10.0, 10.0], b=[20.0, 20.0])
    for _ in range(20):
        measured(speeds, a=[5.0] * 8)  # the same batch on more nodes: all rates fall
    assert speed(speeds, "b", (), {}).value == pytest.approx(2.0)
    equal = Speeds("a")
    equal.note(2, {"a": [10.0, 10.0]}, equal=True)
    equal.note(8, {"b": [20.0] * 8}, equal=True)
    assert speed(equal, "b", (), {}).value == pytest.approx(2.0)


def test_newer_rates_replace_older_ones() -> None:
    speeds = of(a=10.0, b=20.0)
    for _ in range(12):
        measured(speeds, a=[10.0] * 8, b=[30.0] * 8)
    assert speed(speeds, "b", (), {}).value == pytest.approx(3.0, rel=0.1)


def test_a_type_where_a_trainer_was_not_measured_is_as_fast_as_for_the_others_but_less_so() -> None:
    errors = []
    for count, at_least in ((0, 1.0), (1, 1.7), (10, 1.95)):
        found = speed(of(a=7.0), "b", [of(a=100.0, b=200.0)] * count, {})
        assert at_least <= found.value < 2.0
        assert not found.measured
        errors.append(found.error)
    assert errors == sorted(errors, reverse=True)
    found = speed(of(a=7.0), "b", [of(a=100.0, b=200.0)] * 3, {})
    assert found.value == pytest.approx(2 ** (3 / 3.25)), "the prior counts as a quarter of a trainer"
    assert (found.error, errors[0]) == (
        pytest.approx(0.25 * math.sqrt(4.25 / 3.25)),
        pytest.approx(math.hypot(0.25, 0.5)),
    )
    others = [of(c=3.0, b=1.5, a=6.0), of(b=8.0, c=9.0)]
    assert speed(of(a=7.0), "c", others, {}).value < 1.0, "whatever their reference is"


def test_given_speeds_count_and_slow_nodes_are_relative_to_them() -> None:
    given = {"a": 1.0, "b": 3.0}
    found = [speed(of(a=10.0), kind, (), given).value for kind in ("a", "b", "b/slow")]
    assert found == pytest.approx([1.0, 3.0, 3.0 * SLOW_SHARE])
    seen = Speeds("b", {"b": 0.0, "b/slow": math.log(0.5)}, {"b": 30, "b/slow": 30})
    assert speed(seen, "b/slow", (), given).value == pytest.approx(1.5)
    slow = speed(of(a=10.0), "b/slow", [of(a=10.0, b=20.0)], {})
    assert slow.value == pytest.approx(SLOW_SHARE * 2**0.8), "of what its type is expected to do"
    assert not slow.measured
    assert speed(of(a=10.0), "a/slow", (), {}).value == pytest.approx(SLOW_SHARE)


def test_a_node_is_compared_with_the_others_of_its_type() -> None:
    def shares(speeds: Speeds, kinds: str, *rates: float) -> list[float | None]:
        nodes = NODES[: len(rates)]
        found = speeds.shares(dict(zip(nodes, rates, strict=True)), dict(zip(nodes, kinds.split(), strict=True)))
        return [found.get(node) for node in nodes]

    assert shares(Speeds(), "a a a b", 10.0, 10.0, 5.0, 3.0) == [2.0, 2.0, 0.5, None]
    assert shares(Speeds(), "a a", 10.0, 5.0) == [2.0, 0.5]
    assert shares(Speeds(), "a a/slow", 10.0, 5.0) == [None, 0.5], "slow nodes say nothing about their type"
    known = of(a=10.0, b=20.0)
    assert shares(known, "a", 5.0) == [pytest.approx(0.5)], "alone, with what it did in a group of this size"
    known.nodes = 2
    assert shares(known, "a", 5.0) == [None], "in another group the same batch is another share"
