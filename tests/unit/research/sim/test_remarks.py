"""What a replay's numbers are said to mean."""

from dataclasses import replace

from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.research.sim.remarks import remarks
from pilot.research.traces.changes import Change
from tests.unit.research.sim.test_metrics import NODES, SHUFFLENET, bursts, narrow, replay, trainers, wide


def test_numbers_that_mean_what_they_seem_to_need_no_remark() -> None:
    summary, _ = replay([Change(0.0, joined=NODES)], trainers(10, [SHUFFLENET]), 3600.0)
    assert list(remarks(summary)) == []


def test_u_of_the_time_with_work_stands_beside_u() -> None:
    changes = [Change(0.0, joined=NODES[:20]), Change(3600.0, joined=NODES[20:])]
    summary, _ = replay(changes, trainers(10, [Curve.proportional(5)], samples=18000.0), 7200.0)
    assert list(remarks(summary)) == [
        "There was work in 0.5 of 2 h. U of that time alone is 100.0%: it had 20 nodes on average, and the whole time"
        " 52.5, with which A_s counts.",
        "Idle node-time: 90.5% because of the lack of trainers.",
    ]


def test_u_of_trainers_that_need_more_than_eq_nodes_is_explained() -> None:
    summary, _ = replay(bursts(4, 16), wide(least=8), 4 * 3600.0)
    (sentence,) = remarks(summary)
    assert "because 4 dedicated nodes never run a trainer that needs at least 8." in sentence
    assert f"U is {summary.working.shared_efficiency:.1%}." in sentence


def test_a_minimum_within_eq_nodes_needs_no_remark() -> None:
    summary, _ = replay(bursts(4, 29), wide(least=7), 4 * 3600.0)
    assert summary.eq_nodes == 7.25
    assert list(remarks(summary)) == []


def test_u_above_100_percent_is_explained_whatever_the_reason() -> None:
    """5 dedicated nodes run one of two trainers that take 4 each; 8 nodes at five eighths of the time run both."""
    (row,) = wide(4)
    two = [replace(row, spec=replace(row.spec, trainer=TrainerId(name), max_nodes=4)) for name in "ab"]
    summary, _ = replay(bursts(4, 8, length_s=2250.0), two, 4 * 3600.0)
    assert summary.efficiency is not None
    assert summary.efficiency > 1.2
    assert summary.working.shared_efficiency is not None
    assert summary.working.shared_efficiency < 1
    (sentence,) = remarks(summary)
    assert sentence.startswith("U can exceed 100%, because 5 dedicated nodes are worth less than varying ones.")


def test_one_sentence_names_the_bounds_that_leave_nodes_idle() -> None:
    summary, _ = replay([Change(0.0, joined=NODES[:10])], narrow(2), 3600.0, most=1)
    assert list(remarks(summary)) == ["Idle node-time: 60.0% because of --max-parallel-trainers."]


def test_a_bound_that_costs_next_to_nothing_is_not_told() -> None:
    summary, _ = replay([Change(0.0, joined=NODES[:10])], narrow(2), 3600.0)
    assert list(remarks(replace(summary, idle={"--max-nodes": 0.009}))) == []
