"""Objectives: what a user's function may return, and the errors if it returns something else."""

from __future__ import annotations

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.plan.objective import OBJECTIVES, named_objective, per_node_value, worth_sentence
from pilot.core.trainer.spec import TrainerSpec

SPEC = TrainerSpec(TrainerId("t"), max_nodes=3, priority=4.0)
CURVE = Curve.of([(1, 10), (2, 15), (3, 18)])


def test_the_shipped_objectives() -> None:
    worth = {
        name: named_objective(name)(SPEC, CURVE).at(2) for name in ("throughput", "scaling-efficiency", "priority")
    }
    assert worth == {"throughput": 15.0, "scaling-efficiency": 1.5, "priority": 6.0}
    slow = Curve.of([(1, 0.5), (2, 0.8)])
    assert named_objective("scaling-efficiency")(SPEC, slow).at(2) == 1.6
    idle_alone = Curve.of([(1, 0), (2, 5)])
    assert named_objective("scaling-efficiency")(SPEC, idle_alone) == idle_alone, "one node yields nothing: no unit"
    with pytest.raises(UserError, match=r"no objective named 'profit'; there are .*throughput.* and module:function"):
        named_objective("profit")


def test_the_unit_of_an_objective_is_named() -> None:
    assert all(worth_sentence(name).startswith("The worth is counted in ") for name in OBJECTIVES)
    assert worth_sentence("mine:profit") == "The worth is what mine:profit returns, times seconds."


def test_a_users_function_is_taken_at_every_count() -> None:
    value = per_node_value(lambda trainer, nodes: trainer.priority * nodes**2)(SPEC, CURVE)
    assert [value.at(n) for n in range(4)] == [0.0, 4.0, 16.0, 36.0]
    assert value.nodes == (0, 1, 2, 3), "it is not asked of more nodes than the trainer can have"


def test_a_users_function_may_return_0_for_few_nodes() -> None:
    value = per_node_value(lambda _trainer, nodes: nodes - 1)(SPEC, CURVE)
    assert [value.at(n) for n in range(4)] == [0.0, 0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("worth", "message"),
    [
        (float("nan"), "is nan; it must be a finite number, 0 or more"),
        (float("inf"), "is inf; it must be a finite number"),
        (-1, r"is -1\.0; it must be a finite number"),
        (None, "fails: TypeError"),
    ],
)
def test_an_invalid_value_is_refused_with_its_trainer(worth: object, message: str) -> None:
    objective = per_node_value(lambda _trainer, nodes: worth if nodes == 2 else 1.0, "mine:f")
    with pytest.raises(UserError, match=f"the objective mine:f, of trainer t on 2 nodes, {message}"):
        objective(SPEC, CURVE)
