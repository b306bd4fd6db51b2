"""Between two decisions at a cadence."""

from __future__ import annotations

import math

from pilot import planners
from pilot.core.commands import Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.ids import TrainerId
from pilot.core.plan.between import interim, next_due_s
from pilot.core.plan.problem import Candidate, Problem
from tests.property.world import World


def candidate(name: str, now: int, low: int, high: int, sizes: tuple[int, ...] = ()) -> Candidate:
    return Candidate(TrainerId(name), now, low, high, Curve.proportional(), 20.0, 10.0, sizes)


def test_waiting_trainers_get_idle_nodes_and_no_other_changes() -> None:
    waiting = (candidate("parked", 1, 2, 3), candidate("sized", 0, 1, 8, (1, 2, 4, 8)), candidate("late", 0, 4, 9))
    problem = Problem(12, 120.0, (candidate("runs", 3, 1, 9), *waiting))
    asked = interim(problem)
    assert asked is not None
    for name in planners.NAMES:
        assert planners.make(name)(asked).as_dict() == {"runs": 3, "parked": 3, "sized": 4, "late": 0}


def test_pins_hold_between_decisions_at_the_expense_of_the_last_submitted() -> None:
    pinned = Candidate(TrainerId("pinned"), 1, 1, 8, Curve.proportional(), 20.0, 10.0, pin=3)
    problem = Problem(6, 120.0, (pinned, candidate("a", 2, 1, 9), candidate("b", 3, 1, 9)))
    asked = interim(problem)
    assert asked is not None
    assert planners.make("dp")(asked).as_dict() == {"pinned": 3, "a": 2, "b": 1}


def test_no_interim_problem_if_no_trainer_can_get_more() -> None:
    assert interim(Problem(4, 120.0, (candidate("runs", 3, 1, 9), candidate("parked", 1, 2, 3)))) is None


def test_decisions_are_due_at_multiples() -> None:
    assert [next_due_s(s, 300.0) for s in (0.0, 299.0, 300.0, 1234.0)] == [300.0, 300.0, 600.0, 1500.0]
    assert next_due_s(0.0, 0.0) == math.inf


def test_a_decision_that_changes_nothing_is_a_decision() -> None:
    """Until the next one is due, what becomes free goes to who waits, and to nobody else."""
    world = World(CoordinatorConfig(decide_every_s=600.0))
    world.join(2)
    world.submit(TrainerId("t"), max_nodes=4, curve=Curve.proportional(), fixed_curve=True)
    world.settle()
    world.pass_time(601.0)
    world.settle()
    world.pass_time(600.0)
    assert world.core.settled and not any(isinstance(command, Solve) for command in world.history[-1][2])
    world.join(2)
    assert not any(isinstance(command, Solve) for command in world.history[-1][2])
