"""Studies in the core: which trials continue, what a trial weighs, when a study stops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pilot.core.commands import AskTrial, Outcome, TellTrial
from pilot.core.errors import UserError
from pilot.core.events import ExitCause, Progress, TrainerCancelled, TrainerFinished, WorkerExited
from pilot.core.ids import StudyId, TrainerId
from pilot.core.promotion import promotable
from pilot.core.study import FAILURES_ALLOWED, Study, Trial
from pilot.core.study_events import StudyResumed, StudyStopped, StudySubmitted, TrialNotAsked
from pilot.core.trainer import Phase
from pilot.core.trial_weight import LEAST, weights
from tests.property.test_studies import study
from tests.property.world import World, generous_plan

S = StudyId("s")


def reached(values: list[float], rungs: tuple[int, ...] = (1, 3, 9), total: int = 100) -> Study:
    """A study whose trials have reached the first rung with ``values``."""
    spec = replace(study(trials=total), rungs=rungs)
    trials = [Trial(n, asked=True, told=True, values=[value], reports=1) for n, value in enumerate(values)]
    return Study(spec, total, trials)


def begun(nodes: int = 2, trials: int = 6) -> World:
    world = World()
    world.join(nodes)
    world.send(StudySubmitted(study(trials=trials)))
    return world


@pytest.mark.parametrize("diverged", [math.nan, math.inf, -math.inf])
def test_a_third_goes_on_and_what_is_not_finite_is_the_worst(diverged: float) -> None:
    one = reached([0.1, 0.9, diverged, 0.5, 0.8, 0.2])
    assert [trial.number for trial in promotable(one)] == [1, 4]


def test_once_nobody_else_can_come_the_best_goes_on_in_any_case() -> None:
    assert not list(promotable(reached([0.1, 0.9], total=3)))
    assert [trial.number for trial in promotable(reached([0.1, 0.9], total=2))] == [1]


def test_the_weights_are_those_that_the_documentation_says() -> None:
    one = reached([0.1 * n for n in range(9)])
    for number in (6, 7, 8):
        one.trials[number].rung = 1
    middle = one.trials[7]
    found = weights(one, [middle], math.inf)
    assert found[None] == 1.0
    assert found[TrainerId("s-7")] == pytest.approx(1.75)
    best, worst = (weights(one, [one.trials[n]], math.inf)[TrainerId(f"s-{n}")] for n in (8, 6))
    assert best > 1.75 > worst
    middle.reports = 2
    assert weights(one, [middle], math.inf)[TrainerId("s-7")] > 1.75, "it does not rise as the rung comes nearer"


def test_who_comes_too_late_for_the_deadline_weighs_next_to_nothing() -> None:
    one = reached([0.1 * n for n in range(9)])
    one.trials[8].rung, one.trials[8].reports = 1, 2
    found = weights(one, [one.trials[8]], left_reports=7.0)
    assert found[None] == LEAST
    assert found[TrainerId("s-8")] > 1
    assert set(weights(one, [one.trials[8]], left_reports=0.5).values()) == {LEAST}


def test_nodes_are_kept_for_a_trial_until_its_parameters_are_there_or_too_late() -> None:
    world = begun(nodes=2)
    world.complete(0, generous_plan)
    assert [type(p) for p in world.pending] == [AskTrial]
    kept = world.core.studies[S].reserved
    assert [one.nodes for one in kept.values()] == [2]
    world.pass_time(31.0)
    assert not kept
    world.settle()
    assert [trial.asked for trial in world.core.studies[S].trials[:1]] == [True]


def test_a_study_stops_after_a_bound_of_failures_in_a_row_and_goes_on_when_it_is_resumed() -> None:
    world = begun(nodes=1, trials=20)
    for number in range(FAILURES_ALLOWED):
        world.settle()
        trainer = TrainerId(f"s-{number}")
        group = world.core.trainers[trainer].group
        assert group is not None
        died = world.worker_dies(trainer, group.members[0], ExitCause.RAISED)
        assert isinstance(died, WorkerExited)
        world.send(replace(died, detail="ValueError: lr"))
    stopped = world.core.studies[S].stopped
    assert stopped == "5 trials in a row failed; the last one, s-4: ValueError: lr"
    assert {n for (_, n), value in world.told.items() if value is None} == set(range(5))
    world.send(StudyResumed(S))
    world.settle()
    assert len(world.core.studies[S].trials) == 6


def test_a_report_that_was_lost_with_a_connection_is_made_up_for_by_the_next() -> None:
    world = begun(nodes=1, trials=1)
    world.settle()
    trainer = world.core.trainers[TrainerId("s-0")]
    assert trainer.group is not None
    heard = Progress(trainer.id, trainer.group.generation, 3, 0, 96, reports=((3, 0.3),))
    assert [type(command) for command in world.send(heard)].count(TellTrial) == 1
    trial = world.core.studies[S].trials[0]
    assert trial.values == [0.3, 0.3]
    world.send(replace(heard, reports=((1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4))))
    assert trial.values == [0.3, 0.3, 0.4]


def test_a_metric_that_nobody_reports_stops_the_study_and_says_what_was_reported() -> None:
    world = begun(nodes=1)
    world.settle()
    trainer = world.core.trainers[TrainerId("s-0")]
    assert trainer.group is not None
    generation = trainer.group.generation
    world.send(Progress(trainer.id, generation, 9, 0, 9, metrics=(("acc", 0.5), ("loss", 1.0))))
    world.send(TrainerFinished(trainer.id, generation, 9, 9))
    world.settle()
    assert world.core.studies[S].stopped == "s-0 ended without 1 report of accuracy; it reported acc, loss"
    assert trainer.outcome is Outcome.FINISHED


def test_a_trial_that_ends_too_early_says_how_many_reports_it_made() -> None:
    world = begun(nodes=1, trials=2)
    world.settle()
    first = world.core.trainers[TrainerId("s-0")]
    assert first.group is not None
    world.report(first.id, 0.5)
    world.settle()
    second = world.core.trainers[TrainerId("s-1")]
    assert second.group is not None
    world.send(TrainerFinished(second.id, second.group.generation, 9, 9))
    world.settle()
    world.send(TrainerFinished(first.id, first.group.generation, 9, 9))
    world.settle()
    ended = [(trial.ended, trial.failed) for trial in world.core.studies[S].trials]
    assert ended == [
        ("ended after 1 of 2 reports of accuracy", False),
        ("ended without 1 report of accuracy", True),
    ]


def test_a_trial_that_was_cancelled_and_resumed_is_an_ordinary_trainer() -> None:
    world = begun(nodes=1, trials=1)
    world.settle()
    name = TrainerId("s-0")
    for value in (0.1, 0.2, 0.3, 0.4):
        world.report(name, value)
        world.settle()
    assert world.core.trainers[name].phase is Phase.SHELVED
    world.send(TrainerCancelled(name))
    world.settle()
    world.resume(name)
    for event in (StudyStopped(S), StudyResumed(S)):
        world.send(event)
        world.settle()
        assert world.core.trainers[name].phase is Phase.RUNNING


def test_a_space_that_fails_stops_the_study_and_the_trial_is_asked_for_again_when_it_goes_on() -> None:
    world = begun(nodes=1)
    world.complete(0, generous_plan)
    world.pending.clear()
    world.send(TrialNotAsked(S, 0, "the space fails: KeyError: 'a'"))
    assert world.core.studies[S].stopped == "the space fails: KeyError: 'a'"
    world.send(StudyResumed(S))
    assert [p.number for p in world.pending if isinstance(p, AskTrial)] == [0]


@pytest.mark.parametrize("rungs", [(), (0,), (3, 3), (3, 1)])
def test_rungs_rise(rungs: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="rungs must increase"):
        study(rungs=rungs)
