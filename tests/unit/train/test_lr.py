"""The rules for the learning rate."""

from __future__ import annotations

import pytest

from pilot.core.errors import UserError
from pilot.train.state.lr import LearningRate


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rule_says_the_factor_of_four_nodes(rule: str, factor: float) -> None:
    assert LearningRate(rule).resized(4, step=10).factor(10) == factor


def test_a_warm_up_goes_from_the_old_factor_to_the_new_one() -> None:
    rate = LearningRate("linear", warmup_steps=3).resized(5, step=100)
    assert [rate.factor(step) for step in (100, 101, 102, 103, 1000)] == [2.0, 3.0, 4.0, 5.0, 5.0]


def test_a_change_in_the_middle_of_a_warm_up_starts_where_it_was() -> None:
    rate = LearningRate("linear", warmup_steps=3).resized(5, step=100).resized(1, step=102)
    assert [rate.factor(step) for step in (102, 103, 104, 105)] == [2.5, 2.0, 1.5, 1.0]


def test_the_same_size_changes_nothing() -> None:
    rate = LearningRate("linear", warmup_steps=3).resized(5, step=100)
    assert rate.resized(5, step=101) == rate


@pytest.mark.parametrize(("rule", "steps"), [("cubic", 0), ("linear", -1)])
def test_unknown_rules_are_refused(rule: str, steps: int) -> None:
    with pytest.raises(UserError):
        LearningRate(rule, steps)
