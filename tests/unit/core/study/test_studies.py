"""Studies in the core: which trials continue, what a trial weighs, when a study stops."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pilot.core.commands import AskTrial, Outcome, TellTrial
from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.events import ExitCause, Progress, TrainerCancelled
from pilot.core.ids import StudyId, TrainerId
from pilot.core.study.events import StudyResumed, StudyStopped, StudySubmitted, TrialNotAsked
from pilot.core.study.study import (
    FAILURES_ALLOWED,
    LEAST,
    TO_END,
    TRIALS_MAX,
    Study,
    StudySpec,
    Trial,
    places,
    promotable,
    reports_left,
    weights,
)
from pilot.core.trainer.trainer import Phase
from pilot.submission.study_definition import default_rungs
from tests.property.test_studies import study
from tests.property.world import World, generous_plan

S = StudyId("s")


def s(number: int) -> TrainerId:
    """A trial of it."""
    return TrainerId(f"s-{number}")


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
def test_a_third_is_promoted_and_infinite_values_rank_last(diverged: float) -> None:
    one = reached([0.1, 0.9, diverged, 0.5, 0.8, 0.2])
    assert [trial.number for trial in promotable(one)] == [1, 4]


def test_the_best_of_a_closed_rung_is_always_promoted() -> None:
    assert not list(promotable(reached([0.1, 0.9], total=3)))
    assert [trial.number for trial in promotable(reached([0.1, 0.9], total=2))] == [1]


def test_the_weights_match_the_documentation() -> None:
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


def test_only_trials_and_offers_of_studies_have_weights() -> None:
    world = begun(nodes=3, trials=2)
    world.submit(TrainerId("other"), max_nodes=2)
    world.complete(0, lambda problem: replace(generous_plan(problem), counts=((s(0), 1),)))
    studies = world.core._studies
    found = studies.weights(0.0, 3, [*world.core.trainers.values(), *studies.offers(4)])
    assert TrainerId("other") not in found and s(1) in found


def test_a_trial_too_late_for_the_deadline_has_the_least_weight() -> None:
    one = reached([0.1 * n for n in range(9)])
    one.trials[8].rung, one.trials[8].reports = 1, 2
    found = weights(one, [one.trials[8]], left_reports=7.0)
    assert found[None] == LEAST
    assert found[TrainerId("s-8")] > 1
    assert set(weights(one, [one.trials[8]], left_reports=0.5).values()) == {LEAST}


def test_on_the_last_reachable_rung_the_remaining_reports_count() -> None:
    one = reached([0.1 * n for n in range(9)])
    for number, reports in ((7, 1), (8, 2)):
        one.trials[number].rung, one.trials[number].reports = 1, reports
    found = weights(one, one.trials[7:], left_reports=2.0)
    new = (1 / 3) / (1 + 2 / 3)
    assert [found[s(7)], found[s(8)]] == pytest.approx([1 / 2 / new, 1 / new])


def test_how_many_reports_are_left_follows_from_the_time_that_the_last_ones_took() -> None:
    one = reached([0.1])
    assert reports_left(one, 400.0, 2.0) == math.inf, "it has no deadline"
    one.spec = replace(one.spec, deadline_s=1000.0)
    assert reports_left(one, 400.0, 2.0) == math.inf, "nothing is known of its speed"
    one.report_s = [10.0, 20.0, 300.0]
    assert [reports_left(one, now_s, 2.0) for now_s in (400.0, 1000.0, 1001.0)] == [60.0, 0.0, 0.0]


def test_nodes_are_reserved_for_a_trial_for_30_seconds() -> None:
    world = begun(nodes=2)
    world.complete(0, generous_plan)
    assert [type(p) for p in world.pending] == [AskTrial]
    kept = world.core.studies[S].reserved
    [one] = kept.values()
    assert one.nodes == 2
    world.pass_time(one.since_s + 29.5 - world.now_s)
    assert kept, "30 s are not over"
    world.pass_time(0.5)
    assert not kept
    world.settle()
    assert [trial.asked for trial in world.core.studies[S].trials[:1]] == [True]


def fails(world: World, number: int) -> None:
    """A trial's script raises an exception."""
    world.settle()
    died = world.worker_dies(s(number), world.core.trainers[s(number)].members[0], ExitCause.RAISED)
    world.send(replace(died, detail="ValueError: lr"))


def test_a_study_stops_after_a_bound_of_failures_in_a_row_and_goes_on_when_it_is_resumed() -> None:
    world = begun(nodes=1, trials=20)
    for number in range(FAILURES_ALLOWED):
        fails(world, number)
    one = world.core.studies[S]
    assert one.stopped == "5 trials in a row failed; the last one, s-4: ValueError: lr"
    assert {trial.ended for trial in one.trials} == {"ValueError: lr"}
    assert {n for (_, n), value in world.told.items() if value is None} == set(range(5))
    world.send(StudyResumed(S))
    world.settle()
    assert len(world.core.studies[S].trials) == 6


def test_failures_are_not_in_a_row_if_a_trial_between_them_reached_a_rung() -> None:
    world = begun(nodes=1, trials=20)
    for number in range(FAILURES_ALLOWED - 1):
        fails(world, number)
    world.settle()
    world.report(s(FAILURES_ALLOWED - 1), 0.5)
    fails(world, FAILURES_ALLOWED)
    assert world.core.studies[S].failures == 1
    assert not world.core.studies[S].stopped


def test_a_report_that_was_lost_with_a_connection_is_made_up_for_by_the_next() -> None:
    world = begun(nodes=1, trials=1)
    world.settle()
    trainer = world.core.trainers[s(0)]
    heard = Progress(trainer.id, trainer.group.generation, 3, 0, 96, reports=((3, 0.3),))
    assert [type(command) for command in world.send(heard)].count(TellTrial) == 1
    trial = world.core.studies[S].trials[0]
    assert trial.values == [0.3, 0.3]
    assert [world.core.reports_of(name) for name in (trainer.id, TrainerId("nobody"))] == [3, 0]
    world.send(replace(heard, reports=((1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4))))
    assert trial.values == [0.3, 0.3, 0.4]


def test_an_unreported_metric_stops_the_study_and_names_the_reported_ones() -> None:
    world = begun(nodes=1)
    world.settle()
    trainer = world.core.trainers[s(0)]
    world.send(Progress(s(0), trainer.group.generation, 9, 0, 9, metrics=(("acc", 0.5), ("loss", 1.0))))
    world.finish(s(0))
    world.settle()
    assert world.core.studies[S].stopped == "s-0 ended without 1 report of accuracy; it reported acc, loss"
    assert trainer.outcome is Outcome.FINISHED


def test_the_end_of_a_trial_counts_its_missing_reports() -> None:
    world = begun(nodes=1, trials=2)
    world.settle()
    world.report(s(0), 0.5)
    for number in (1, 0):
        world.settle()
        world.finish(s(number))
    world.settle()
    ended = [(trial.ended, trial.failed) for trial in world.core.studies[S].trials]
    assert ended == [("ended after 1 of 2 reports of accuracy", False), ("ended without 1 report of accuracy", True)]


def test_the_best_trial_trains_to_the_end_of_its_script_and_one_that_ends_earlier_is_compared_by_its_last_value() -> (
    None
):
    world = World()
    world.join(1)
    world.send(StudySubmitted(study(trials=3, rungs=(1, 3, TO_END))))
    for number, value in ((0, 0.1), (1, 0.3), (2, 0.2)):
        world.settle()
        world.report(s(number), value)
    for value in (0.4, 0.5, 0.6, 0.7):
        world.settle()
        world.report(s(1), value)
    world.settle()
    world.finish(s(1))
    world.settle()
    one = world.core.studies[S]
    assert one.over and one.best() is one.trials[1]
    assert [trial.values for trial in one.trials] == [[0.1], [0.3, 0.5, 0.7], [0.2]]
    phases = [world.core.trainers[s(number)].phase for number in range(3)]
    assert phases == [Phase.SHELVED, Phase.FINISHED, Phase.SHELVED]
    world.send(StudyResumed(S, trials=4))
    world.settle()
    world.report(s(3), 0.9)
    world.settle()
    world.finish(s(3))
    world.settle()
    assert (one.trials[3].values, one.best()) == ([0.9, 0.9, 0.9], one.trials[3])


def test_a_study_goes_on_when_the_code_after_the_loop_of_its_only_trial_has_ended() -> None:
    world = World()
    world.join(1)
    world.send(StudySubmitted(study(trials=2, rungs=(TO_END,))))
    for number in range(2):
        world.settle()
        world.report(s(number), 0.5)
        world.finish(s(number))
    world.settle()
    assert world.core.studies[S].over


def test_failures_are_no_longer_in_a_row_after_a_script_that_ended_well() -> None:
    world = World()
    world.join(1)
    world.send(StudySubmitted(study(trials=20, rungs=(TO_END,))))
    for number in range(2 * FAILURES_ALLOWED):
        if number % 2:
            fails(world, number)
        else:
            world.settle()
            world.report(s(number), 0.5)
            world.finish(s(number))
    assert world.core.studies[S].stopped == ""


def test_a_script_that_reports_nothing_before_its_end_lacks_a_report() -> None:
    world = World()
    world.join(1)
    world.send(StudySubmitted(study(trials=1, rungs=(TO_END,))))
    world.settle()
    world.finish(s(0))
    world.settle()
    assert world.core.studies[S].stopped == "s-0 ended without 1 report of accuracy; it reported nothing"


@pytest.mark.parametrize("rungs", [(2, TO_END), (2, 6)])
def test_the_end_of_a_script_is_assumed_to_be_at_three_times_the_rung_before(rungs: tuple[int, ...]) -> None:
    one = reached([0.1 * n for n in range(6)], rungs)
    assert [trial.number for trial in promotable(one)] == [5, 4]
    one.trials[5].rung = 1
    assert weights(one, [one.trials[5]], left_reports=5.0)[s(5)] > LEAST
    assert weights(one, [one.trials[5]], left_reports=4.0)[s(5)] == LEAST


@pytest.mark.parametrize(
    ("trials", "rungs"), [(1, (1, TO_END)), (2, (1, TO_END)), (3, (1, 3, TO_END)), (26, (1, 3, 9, TO_END))]
)
def test_by_default_trials_are_thinned_out_until_one_is_left(trials: int, rungs: tuple[int, ...]) -> None:
    assert default_rungs(trials) == rungs
    StudySpec(S, "accuracy", True, default_rungs(TRIALS_MAX), TRIALS_MAX, study().template)


def test_a_trial_that_was_cancelled_and_resumed_is_an_ordinary_trainer() -> None:
    world = begun(nodes=1, trials=1)
    world.settle()
    name = TrainerId("s-0")
    for value in (0.1, 0.2, 0.3, 0.4):
        world.report(name, value)
        world.settle()
    assert world.core.trainers[name].phase is Phase.COMPLETE
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


def test_a_sampler_that_does_not_answer_is_asked_three_times_and_as_often_again_when_the_study_goes_on() -> None:
    world = begun(nodes=1)
    world.complete(0, generous_plan)
    for _ in range(2):
        for asks in (1, 1, 0):
            world.pending.clear()
            commands = world.send(TrialNotAsked(S, 0, "no answer", again=True))
            assert [c.number for c in commands if isinstance(c, AskTrial)] == [0] * asks
        assert world.core.studies[S].stopped == "no answer"
        world.send(StudyResumed(S))
        assert [p.number for p in world.pending if isinstance(p, AskTrial)] == [0]


def test_a_resumed_study_may_get_more_trials_but_not_fewer() -> None:
    world = begun(nodes=0, trials=6)
    for trials, total in ((8, 8), (3, 8), (None, 8)):
        world.send(StudyStopped(S))
        world.send(StudyResumed(S, trials=trials))
        assert world.core.studies[S].total == total


def test_the_first_new_trial_gets_the_largest_count() -> None:
    """They are alike until they have parameters, whichever of them the plan meant."""
    world = begun(nodes=3)
    world.complete(0, lambda problem: replace(generous_plan(problem), counts=((s(0), 1), (s(1), 2), (s(2), 0))))
    assert {number: kept.nodes for number, kept in world.core.studies[S].reserved.items()} == {0: 2, 1: 1}


@pytest.mark.parametrize(("curve", "one_s"), [([(1, 1.0), (2, 1.5)], 1.5), ([(1, 0.0)], 1.0)])
def test_the_last_20_report_times_are_scaled_to_one_node(curve: list[tuple[float, float]], one_s: float) -> None:
    """A curve that says nothing of one node says nothing of a speed-up."""
    one = study(trials=1, rungs=(100,))
    world = World()
    world.join(2)
    world.send(StudySubmitted(replace(one, template=replace(one.template, curve=Curve.of(curve), fixed_curve=True))))
    world.settle()
    for _ in range(25):
        world.report(s(0), 0.5)
    assert world.core.studies[S].report_s == [one_s] * 20


def test_the_best_trial_is_that_of_the_highest_rung() -> None:
    one = reached([0.9, 0.1, 0.99])
    assert one.best() is one.trials[2]
    one.trials[0].values += [0.9, 0.1]
    one.trials[1].values += [0.2, 0.8]
    assert one.best() is one.trials[1]
    assert reached([]).best() is None


def test_the_number_of_promotions_from_a_closed_rung() -> None:
    one = reached([])
    one.exhausted = True
    assert [places(one, 0, came) for came in (0, 1, 2, 3, 6)] == [0, 1, 1, 1, 2]


@pytest.mark.parametrize("rungs", [(), (0,), (3, 3), (3, 1)])
def test_rungs_rise(rungs: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="rungs must increase"):
        study(rungs=rungs)
