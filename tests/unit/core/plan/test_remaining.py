"""The work that trainers have left: known, or roughly from what the pool has seen."""

from __future__ import annotations

import pytest

from pilot.core.commands import Outcome, Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import Measured
from pilot.core.ids import TrainerId
from pilot.core.plan.objective import mean_completion_time
from pilot.core.plan.remaining import Remaining, both, completion_weights, remaining, usual_s
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer
from pilot.planners import dp
from tests.property.world import World


def trainer(name: str, samples: float | None = None, used_s: float = 0.0, *, ended: bool = False) -> Trainer:
    spec = TrainerSpec(TrainerId(name), curve=Curve.proportional(2.0), fixed_curve=True, samples=samples)
    made = Trainer(spec, Measured(spec))
    made.usage.used_s, made.outcome = used_s, Outcome.FINISHED if ended else None
    return made


def test_what_is_left_is_known_or_what_others_used_or_as_much_again() -> None:
    assert remaining(0.0, trainer("a", 100.0), None) == Remaining(50.0)
    assert remaining(0.0, trainer("a", used_s=30.0), 80.0) == Remaining(50.0, rough=True)
    assert remaining(0.0, trainer("a", used_s=90.0), 80.0) == Remaining(90.0, rough=True)
    assert remaining(0.0, trainer("a", used_s=90.0), None) == Remaining(90.0, rough=True)
    assert remaining(0.0, trainer("a"), None) is None


def test_what_trainers_usually_use_is_the_median_of_those_that_finished() -> None:
    assert usual_s(0.0, [trainer("a", used_s=5.0)]) is None
    ended = [trainer(name, used_s=used_s, ended=True) for name, used_s in (("a", 1.0), ("b", 9.0), ("c", 5.0))]
    assert usual_s(0.0, [*ended, trainer("d", 100.0)]) == 5.0


def test_before_any_has_finished_it_is_the_median_of_those_whose_work_is_known() -> None:
    assert usual_s(0.0, [trainer("a", 100.0, used_s=10.0), trainer("b")]) == 60.0


def test_short_work_weighs_more_and_unknown_work_as_usual() -> None:
    known = [trainer("a", 2000.0), trainer("b", 6000.0), trainer("c")]
    assert completion_weights(0.0, known, known, 120.0) == {"a": 1 / 1000, "b": 1 / 3000, "c": 1 / 2000}
    assert completion_weights(0.0, known, known, 2000.0) == {"a": 1 / 2000, "b": 1 / 3000, "c": 1 / 2000}
    assert completion_weights(0.0, [], [trainer("c")], 120.0) == {"c": 1.0}


def test_weights_are_multiplied() -> None:
    a, b, c = map(TrainerId, "abc")
    assert both({a: 2.0, b: 3.0}, {b: 5.0, c: 7.0}) == {"a": 2.0, "b": 15.0, "c": 7.0}


def test_a_short_trainer_comes_before_a_long_one() -> None:
    world = World(CoordinatorConfig(objective=mean_completion_time, grace_s=0.0))
    world.join(4)
    for name, samples in (("long", 1e6), ("short", 1e4)):
        world.submit(TrainerId(name), 1, 4, Curve.proportional(1.0), fixed_curve=True, samples=samples)
    world.settle(dp.plan)
    assert [len(t.target) for t in world.core.trainers.values()] == [0, 4]
    (problem,) = [command.problem for command in world.given(Solve)][-1:]
    assert [c.value.at(1) for c in problem.candidates] == pytest.approx([1e-6, 1e-4])
