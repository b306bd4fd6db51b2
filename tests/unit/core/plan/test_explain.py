"""The output of ``pilot explain``, word for word, in every case."""

from __future__ import annotations

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.curves.curve_model import Estimate, MeasuredRate, Priors, estimates
from pilot.core.curves.measured import Measured
from pilot.core.curves.speeds import Speed
from pilot.core.ids import TrainerId
from pilot.core.plan.explain import explain, rate_sentences, speed_sentences
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.core.trainer.spec import TrainerSpec

A, B, C = TrainerId("a"), TrainerId("b"), TrainerId("c")


def candidate(trainer: TrainerId, now: int, low: int = 1, high: int = 8) -> Candidate:
    return Candidate(trainer, now, low, high, Curve.of([(1, 10), (4, 34)]), 20.0, 5.0)


def sentences(problem: Problem, counts: dict[TrainerId, int], status: PlanStatus = PlanStatus.OPTIMAL) -> list[str]:
    found = explain(problem, Plan(status, tuple(counts.items()), 0.0), A)
    assert found is not None
    return found.sentences()


def counted(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def on(nodes: int, worth: int, now: int, rest: str) -> str:
    return f"On {counted(nodes)} it would be worth {worth:,} over the next 100 s instead of {now:,}, {rest}."


def by(donor: TrainerId, loss: int) -> str:
    return f"but no node is free, and {donor} would lose {loss} by giving one up"


FEWER = on(1, 910, 1800, "and a node would be free")


@pytest.mark.parametrize(
    ("nodes", "others", "counts", "rest"),
    [
        (5, (candidate(B, 3, low=2),), {B: 3}, by(B, 930)),
        (6, (candidate(B, 3),), {B: 3}, "using a free node"),
        (5, (candidate(B, 3, low=3),), {B: 3}, "but no node is free and no trainer can give one up"),
        # the one that loses least gives it up, here c, and the first of equals
        (7, (candidate(B, 3, high=3), candidate(C, 2)), {B: 3, C: 2}, by(C, 890)),
        (6, (candidate(B, 2), candidate(C, 2)), {B: 2, C: 2}, by(B, 890)),
    ],
)
def test_the_worth_of_a_node_fewer_and_one_more(
    nodes: int, others: tuple[Candidate, ...], counts: dict[TrainerId, int], rest: str
) -> None:
    found = sentences(Problem(nodes, 100, (candidate(A, 2), *others)), {A: 2, **counts})
    assert found == ["a had 2 nodes and got 2: no other plan is worth more.", FEWER, on(3, 2240, 1800, rest)]


def test_a_trainer_that_lost_nodes_is_compared_with_what_it_got() -> None:
    one = sentences(Problem(2, 100, (candidate(A, 2), candidate(B, 1))), {A: 1, B: 1})
    rest = "but no node is free, and b would lose 1,050 by giving one up"
    assert one[1:] == [on(0, -90, 910, "and a node would be free"), on(2, 1800, 910, rest)]
    none = sentences(Problem(2, 100, (candidate(A, 2),)), {A: 0})
    assert none == ["a had 2 nodes and got 0: no other plan is worth more.", on(1, 910, -90, "using a free node")]


def test_no_donor_means_no_loss() -> None:
    problem = Problem(5, 100, (candidate(A, 2), candidate(B, 3, low=3)))
    found = explain(problem, Plan(PlanStatus.OPTIMAL, ((A, 2), (B, 3)), 0.0), A)
    assert found is not None
    assert (found.donor, found.donor_loss) == (None, 0.0)


def test_sizes_on_which_it_cannot_run() -> None:
    problem = Problem(3, 100, (candidate(A, 2, low=2, high=2),))
    said = ["It cannot run on 1 node.", "It cannot run on 3 nodes."]
    assert sentences(problem, {A: 2}) == ["a had 2 nodes and got 2: no other plan is worth more.", *said]


def test_how_good_the_plan_is() -> None:
    problem = Problem(3, 100, (candidate(A, 2),))
    assert "the best plan found within the time limit" in sentences(problem, {A: 3}, PlanStatus.INCUMBENT)[0]
    kept = sentences(problem, {A: 3}, PlanStatus.KEPT)[0]
    assert kept == "a had 2 nodes and got 2: no better plan than the current allocation was found."


def test_rates_are_shown_as_measured_estimated_or_given() -> None:
    known = estimates((MeasuredRate(1, 100.0, 0.02), MeasuredRate(4, 360.0, 0.04)), None, Priors(), 8)
    assert rate_sentences(known, guessed=False) == [
        "Samples per second, measured: 100 ± 2% on 1 node, 360 ± 4% on 4 nodes.",
        "Samples per second, estimated: 189.3 ± 5% on 2 nodes, 690.8 ± 8% on 8 nodes.",
    ]
    old = Estimate(1, 100.0, 0.05, measured=True, age_s=7200.0), Estimate(2, 150.0, 0.2, measured=False, by_other=True)
    assert rate_sentences(old, guessed=False, known_from="trainer b") == [
        "Samples per second, measured: 100 ± 5% on 1 node (2.0 h ago).",
        "Samples per second, measured by trainer b of the same script: 150 ± 20% on 2 nodes.",
    ]
    doubted = Estimate(1, 100.0, 0.33, measured=True)
    assert rate_sentences([doubted], guessed=False) == [
        "Samples per second, measured: 100 ± 33% on 1 node.",
        "Rates that contradict others, or were hardly measured, are uncertain until measured again.",
    ]
    given = Measured(TrainerSpec(A, curve=Curve.of([(1, 5.0), (2, 9.0)]), fixed_curve=True)).estimates()
    assert rate_sentences(given, guessed=False) == ["Samples per second, given: 5 on 1 node, 9 on 2 nodes."]
    assert rate_sentences((), guessed=True) == [
        "Its rate has not been measured yet: plans assume that it scales like a typical trainer."
    ]


def test_numbers_of_four_digits_are_grouped() -> None:
    assert sentences(Problem(1, 100, (candidate(A, 0),)), {A: 0})[-1].startswith("On 1 node it would be worth 1,000 ")


def test_a_decision_is_explained_by_the_next_sizes() -> None:
    candidate = Candidate(A, 2, 1, 8, Curve.proportional(), 1.0, 1.0, sizes=(1, 2, 4, 8))
    problem = Problem(8, 60.0, (candidate,))
    for nodes, nearby in ((4, [2, 4, 8]), (8, [4, 8, 9]), (0, [0, 1])):
        explained = explain(problem, Plan(PlanStatus.OPTIMAL, ((A, nodes),), 0.0), A)
        assert explained is not None and [term.nodes for term in explained.terms] == nearby


def test_a_trainer_outside_the_problem_has_no_explanation() -> None:
    problem = Problem(5, 100, (candidate(A, 2),))
    assert explain(problem, Plan(PlanStatus.OPTIMAL, ((A, 2),), 0.0), B) is None


def test_a_kept_plan_is_explained_by_the_current_counts() -> None:
    problem = Problem(5, 100, (candidate(A, 2), candidate(B, 3)))
    counts = ((A, 4), (B, 1))
    changed = explain(problem, Plan(PlanStatus.OPTIMAL, counts, 0.0), A)
    kept = explain(problem, Plan(PlanStatus.KEPT, counts, 0.0), A)
    assert changed is not None and kept is not None
    assert (changed.had_nodes, changed.nodes) == (2, 4)
    assert (kept.had_nodes, kept.nodes) == (2, 2)


def typed(by_type: tuple[int, ...], status: PlanStatus = PlanStatus.OPTIMAL) -> list[str]:
    """What is said of a trainer that had an a100, where a plan gives it these nodes of 2 a100 and 3 a40."""
    curve = Curve.of([(1, 10), (2, 18), (4, 30)])
    one = Candidate(A, 1, 1, 8, curve, 20.0, 5.0, held=(1, 0), speeds=(1.0, 0.5))
    problem = Problem(5, 100, (one,), types=("a100", "a40"), types_nodes=(2, 3))
    plan = Plan(status, ((A, sum(by_type)),), 0.0, by_type=((A, by_type),))
    found = explain(problem, plan, A)
    assert found is not None
    return found.sentences()


def test_nodes_of_several_types_are_explained_by_one_fewer_and_one_more_of_each() -> None:
    assert typed((2, 1)) == [
        "a had 1 a100 and got 2 a100 and 1 a40: no other plan is worth more.",
        "On 1 a100 and 1 a40 it would be worth 1,200 over the next 100 s instead of 1,900, and a node would be free.",
        "On 2 a100 it would be worth 1,600 over the next 100 s instead of 1,900, and a node would be free.",
        "On 3 a100 and 1 a40 it would be worth 2,500 over the next 100 s instead of 1,900.",
        "On 2 a100 and 2 a40 it would be worth 2,200 over the next 100 s instead of 1,900.",
        "The plan took its nodes for 1% more than they do, because 3 nodes exchange more than it assumed.",
    ]
    assert typed((2, 0))[0] == "a had 1 a100 and got 2 a100: no other plan is worth more."
    assert not [line for line in typed((2, 0)) if "exchange" in line]
    assert typed((2, 2), PlanStatus.KEPT)[0].startswith("a had 1 a100 and got 1 a100: no better plan")


def test_speeds_are_shown_as_measured_or_expected() -> None:
    speeds = {"a100": Speed(1.0, 0.0, measured=True), "a40": Speed(0.5, 0.04, measured=True)}
    assert speed_sentences(speeds, "a100") == ["Speed of a node, relative to a100 ones: 0.5 ± 4% on a40."]
    more = speeds | {"": Speed(0.8, 0.5, measured=False)}
    assert speed_sentences(more, "a100")[0].endswith(": 0.5 ± 4% on a40, 0.8 ± 50% on other (expected).")
    assert speed_sentences({"a100": speeds["a100"]}, "a100") == speed_sentences(more, None) == []
