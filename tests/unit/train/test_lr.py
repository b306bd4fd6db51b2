"""The rules for the learning rate."""

from __future__ import annotations

import pytest

from pilot.core.errors import UserError
from pilot.train.state.stepper import LearningRate


@pytest.mark.parametrize(("rule", "factor"), [("linear", 4.0), ("sqrt", 2.0), ("none", 1.0)])
def test_the_rule_says_the_factor_of_four_nodes(rule: str, factor: float) -> None:
    assert LearningRate(rule, nodes=4).factor == factor


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(UserError, match="lr_rule must be one of linear, sqrt, none; got 'cubic'"):
        LearningRate("cubic")
