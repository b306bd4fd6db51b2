"""The node counts allowed for a trainer."""

from __future__ import annotations

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.explain import explain
from pilot.core.plan.problem import Candidate, Plan, PlanStatus, Problem
from pilot.core.trainer.spec import TrainerSpec

T = TrainerId("t")


def test_sizes_are_their_own_bounds() -> None:
    spec = TrainerSpec(T, 1, 64, sizes=(2, 4, 8))
    assert (spec.min_nodes, spec.max_nodes) == (2, 8)
    assert [spec.fitting(n) for n in (1, 2, 3, 7, 9)] == [1, 2, 2, 4, 8]
    assert TrainerSpec(T, 2, 8).fitting(7) == 7


@pytest.mark.parametrize(
    ("sizes", "why"), [((2, 1), "must be increasing"), ((1, 1), "must be increasing"), ((1, 9), "size 9 is not")]
)
def test_what_is_no_list_of_sizes_is_refused(sizes: tuple[int, ...], why: str) -> None:
    with pytest.raises(UserError, match=f"trainer t: .*{why}"):
        TrainerSpec(T, 1, 8, sizes=sizes)


def test_a_decision_is_explained_by_the_next_sizes() -> None:
    candidate = Candidate(T, 2, 1, 8, Curve.proportional(), 1.0, 1.0, sizes=(1, 2, 4, 8))
    problem = Problem(8, 60.0, (candidate,))
    for nodes, told in ((4, [2, 4, 8]), (8, [4, 8, 9]), (0, [0, 1])):
        explained = explain(problem, Plan(PlanStatus.OPTIMAL, ((T, nodes),), 0.0), T)
        assert explained is not None and [term.nodes for term in explained.terms] == told
