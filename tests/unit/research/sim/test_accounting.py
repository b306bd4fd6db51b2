"""The cost of a rescale, in the paper's accounting and physically."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.research.sim.accounting import FREE, Account, Accounting, Cost
from pilot.research.traces.workload import WorkloadRow

PAPER, PHYSICAL = Accounting.PAPER, Accounting.PHYSICAL
CURVE = Curve.of([(1, 10.0), (2, 18.0), (4, 30.0)])


def account(samples: float = 1e6, min_nodes: int = 1) -> Account:
    spec = TrainerSpec(
        TrainerId("t"), min_nodes=min_nodes, max_nodes=4, curve=CURVE, rescale_up_s=20.0, rescale_down_s=5.0
    )
    return Account(WorkloadRow(spec, 0.0, samples, 0), admitted_s=0.0)


def running(nodes: int, accounting: Accounting, **spec: int) -> Account:
    """An account that trains on ``nodes`` nodes, with its start already paid for."""
    made = account(**spec)
    made.rescale(accounting, (0,), (nodes,))
    made.advance(1000.0)
    return made


def test_the_paper_starts_from_nothing_for_free() -> None:
    assert account().rescale(PAPER, (0,), (4,)) == FREE


def test_the_paper_charges_the_old_rate_at_once() -> None:
    trainer = running(2, PAPER)
    done = trainer.done
    assert trainer.rescale(PAPER, (0,), (4,)) == Cost(rescale=20.0 * 18.0)
    assert trainer.done == done - 360.0
    assert trainer.rescale(PAPER, (0,), (1,)) == Cost(rescale=5.0 * 30.0)


def test_the_paper_charges_a_preemption_and_then_the_plans_rescale() -> None:
    trainer = running(4, PAPER)
    assert trainer.rescale(PAPER, (2,), (4,)) == Cost(preemption=5.0 * 30.0, rescale=20.0 * 18.0)
    assert trainer.rescale(PAPER, (2,), (2,)) == Cost(preemption=5.0 * 30.0)


def test_below_min_nodes_nothing_is_processed_and_nothing_paid() -> None:
    trainer = running(2, PAPER, min_nodes=2)
    assert trainer.rescale(PAPER, (1,), (0,)) == Cost(preemption=5.0 * 18.0)
    assert trainer.ends_s() == math.inf
    assert trainer.rescale(PAPER, (0,), (2,)) == FREE


def test_a_physical_start_pauses_at_the_new_rate() -> None:
    trainer = account()
    assert trainer.rescale(PHYSICAL, (0,), (4,)) == Cost(rescale=20.0 * 30.0)
    assert trainer.advance(20.0) == 0.0
    assert trainer.advance(21.0) == 30.0


def test_a_physical_loss_pauses_for_the_way_down() -> None:
    trainer = running(4, PHYSICAL)
    assert trainer.rescale(PHYSICAL, (2,), (2,)) == Cost(preemption=5.0 * 18.0)
    assert trainer.advance(1010.0) == 5.0 * 18.0


def test_a_rescale_within_a_pause_does_not_shorten_it() -> None:
    trainer = account()
    trainer.rescale(PHYSICAL, (0,), (2,))
    trainer.advance(10.0)
    trainer.rescale(PHYSICAL, (0,), (1,))
    assert trainer.advance(21.0) == 10.0


def test_no_change_costs_nothing() -> None:
    assert running(2, PAPER).rescale(PAPER, (0,), (2,)) == FREE
    assert running(2, PHYSICAL).rescale(PHYSICAL, (0,), (2,)) == FREE


@pytest.mark.parametrize("accounting", [PAPER, PHYSICAL])
def test_a_trainer_is_done_at_its_predicted_end(accounting: Accounting) -> None:
    trainer = account(samples=300.0)
    trainer.rescale(accounting, (0,), (4,))
    expected_s = 10.0 if accounting is PAPER else 30.0
    assert trainer.ends_s() == expected_s
    assert trainer.advance(expected_s - 1) == 270.0
    assert not trainer.is_done()
    assert trainer.advance(expected_s + 100) == 30.0
    assert trainer.is_done()


def test_more_nodes_take_effect_after_the_delay_and_fewer_at_once() -> None:
    trainer = account(samples=1000.0)
    trainer.submission = trainer.submission.rescaled(0.0)
    trainer.rescale(PAPER, (0,), (2,), delay_s=15.0)
    assert trainer.ends_s() == 15.0 + 1000.0 / 18.0
    assert (trainer.advance(10.0), trainer.advance(25.0)) == (0.0, 180.0)
    trainer.rescale(PAPER, (0,), (4,), delay_s=15.0)
    assert trainer.ends_s() == 40.0 + (820.0 - 15.0 * 18.0) / 30.0
    trainer.rescale(PAPER, (2,), (4,), delay_s=15.0)
    assert (trainer.rate, trainer.later) == (18.0, (40.0, 30.0)), "two nodes were lost and two came"
    trainer.rescale(PAPER, (0,), (1,), delay_s=15.0)
    assert (trainer.rate, trainer.later) == (10.0, None)


def test_one_that_ends_before_more_nodes_take_effect() -> None:
    trainer = account(samples=100.0)
    trainer.rescale(PAPER, (0,), (1,))
    trainer.advance(5.0)
    trainer.later = (20.0, 30.0)
    assert trainer.ends_s() == 10.0


def mixed(*, equal_shares: bool = False) -> Account:
    """An account that computes half as fast on nodes of the second type, and cannot use the third."""
    row = replace(account().submission, equal_shares=equal_shares)
    return Account(row, 0.0, speeds=(1.0, 0.5, 0.0))


def test_nodes_of_several_types_compute_by_their_speeds_and_exchange_by_their_number() -> None:
    trainer = mixed()
    assert trainer.rate_on((2, 0, 0)) == CURVE.at(2)
    assert trainer.rate_on((0, 1, 0)) == pytest.approx(5.0)
    assert 1 / trainer.rate_on((1, 1, 0)) == pytest.approx(1 / 18 + (1 / 1.5 - 1 / 2) / 10)


def test_with_equal_shares_the_slowest_node_decides() -> None:
    trainer = mixed(equal_shares=True)
    assert trainer.rate_on((2, 0, 0)) == CURVE.at(2)
    assert 1 / trainer.rate_on((1, 1, 0)) == pytest.approx(1 / 18 + (1 / 1.0 - 1 / 2) / 10)
    assert trainer.rate_on((1, 0, 1)) == 0.0


@pytest.mark.parametrize("accounting", [PAPER, PHYSICAL])
def test_a_node_for_one_of_another_type_costs_a_rescale_to_more_nodes(accounting: Accounting) -> None:
    trainer = mixed()
    trainer.rescale(accounting, (0, 0, 0), (1, 1, 0))
    trainer.advance(1000.0)
    at = (1, 1, 0) if accounting is PAPER else (2, 0, 0)
    assert trainer.rescale(accounting, (0, 0, 0), (2, 0, 0)) == Cost(rescale=20.0 * trainer.rate_on(at))
    assert trainer.rate == CURVE.at(2) and trainer.nodes == 2
    assert [nodes for _, nodes in trainer.changes] == [2]
