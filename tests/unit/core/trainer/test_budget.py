"""How much of a budget is used, and when and how that has consequences."""

from __future__ import annotations

import math

import pytest

from pilot.core.trainer.budget import SLACK_S, BudgetState, Usage, hours, seconds


def test_budgets_are_in_charged_node_hours() -> None:
    assert seconds(10.0, 0.5) == 72_000.0
    assert seconds(10.0, 1.0) == 36_000.0
    assert hours(72_000.0, 0.5) == 10.0
    assert [seconds(None, 1.0), seconds(10.0, 0.0)] == [None, None]


def test_seconds_are_summed_over_the_nodes() -> None:
    usage = Usage()
    usage.count(10.0, 3)
    assert (usage.until(10.0), usage.until(15.0)) == (0.0, 15.0)
    usage.count(20.0, 1)
    assert usage.until(27.0) == 37.0
    usage.count(30.0, 0)
    assert usage.until(99.0) == 40.0


def test_no_budget_is_never_due() -> None:
    usage = Usage(used_s=1e12, nodes=1)
    assert (usage.due_s(), usage.check(1e12, 1.0)) == (math.inf, BudgetState())
    assert Usage(0.0).due_s() == 0.0


def test_it_is_due_at_four_fifths_and_at_the_end_and_at_once_where_that_is_over() -> None:
    usage = Usage(3600.0)
    assert usage.due_s() == math.inf, "it is on no nodes"
    usage.count(100.0, 2)
    assert usage.due_s() == 100.0 + 1440.0
    assert usage.check(1539.0, 1.0) == BudgetState()
    assert usage.check(1540.0, 0.5) == BudgetState(
        warning="80% of its budget of 0.5 charged node-hours (0.5 for an hour on a node) is used"
    )
    assert usage.check(1600.0, 1.0) == BudgetState(), "once"
    assert usage.due_s() == 100.0 + 1800.0
    assert usage.check(1899.0, 1.0) == BudgetState()
    assert usage.check(1900.0, 1.0) == BudgetState(end="its budget of 1 node-hours is used up")
    assert not usage.spent
    usage.count(2000.0, 0)
    assert usage.spent
    assert usage.due_s() == 2000.0
    usage.allow(4751.0)
    assert not usage.spent
    assert (usage.due_s(), usage.warned) == (math.inf, False)
    usage.allow(4750.0)
    assert usage.due_s() == 2000.0, "on no nodes it is due as well where nothing is left of the part"


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_moment_that_was_worked_out_counts_although_arithmetic_lost_a_part_of_it(nodes: int) -> None:
    for early_s, ends in ((0.5 * SLACK_S, True), (1.5 * SLACK_S, False)):
        usage = Usage(90.0, warned=True, nodes=nodes)
        assert bool(usage.check(usage.due_s() - early_s, 1.0).end) == ends
