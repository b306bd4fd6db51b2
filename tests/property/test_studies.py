"""Random events against studies: no trial is lost, run twice or told twice, and a shelved one takes nobody's place."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.events import DrainRequested, PoolReopened, TrainerCancelled
from pilot.core.ids import StudyId, TrainerId, TrainerUid
from pilot.core.study.events import StudyResumed, StudyStopped, StudySubmitted, TrialAsked
from pilot.core.study.study import Study, StudySpec
from pilot.core.trainer.spec import Checking, TrainerSpec
from pilot.core.trainer.trainer import Phase
from tests.property.test_core import act
from tests.property.world import World

NAMES = [StudyId("s"), StudyId("other")]
ACTIONS = ["join", "lose", "notice", "answer", "answer", "answer", "answer", "fail", "die", "raise", "cancel", "finish"]
ACTIONS += ["report", "report", "report", "report", "stop", "resume study", "submit", "wait a little", "down and up"]
scripts = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1 << 16)), max_size=80)


def study(
    name: StudyId = NAMES[0], trials: int = 6, rungs: tuple[int, ...] = (1, 2, 4), deadline_s: float | None = None
) -> StudySpec:
    """A study of small trials."""
    check = Checking.AUTO if name == "other" else Checking.OFF
    template = TrainerSpec(TrainerId(name), max_nodes=2, uid=TrainerUid(f"{name:0>32}"[:32]), check=check)
    return StudySpec(name, "accuracy", True, rungs, trials, template, deadline_s)


def happen(world: World, action: str, number: int) -> None:
    """One random event in the world and its studies."""
    rng = random.Random(number)
    trials = [t for t in world.core.trainers if t.rpartition("-")[0] in NAMES]
    match action:
        case "report" if trials:
            world.report(trials[number % len(trials)], rng.random())
        case "report":
            pass
        case "stop":
            world.send(StudyStopped(NAMES[number % 2]))
        case "resume study":
            world.send(StudyResumed(NAMES[number % 2], trials=6 + number % 3 if number % 4 == 0 else None))
        case "down and up":
            if number % 4 == 0:
                world.send(DrainRequested())
                world.settle()
                world.lose(list(world.nodes))
                world.send(PoolReopened())
        case _:
            act(world, action, number)


def play(script: list[tuple[str, int]]) -> World:
    world = World()
    world.join(2)
    for name in NAMES:
        world.send(StudySubmitted(study(name)))
    for action, number in script:
        happen(world, action, number)
        check(world)
    return world


def check(world: World) -> None:
    """Invariants of studies."""
    core = world.core
    shelved = [t for t in core.trainers.values() if t.shelved]
    assert not {t.id for t in shelved} & {t.id for t in core.admitted()}
    for one in core.studies.values():
        assert len(one.trials) <= one.total
        assert [trial.number for trial in one.trials] == list(range(len(one.trials)))
        for trial in one.trials:
            trainer = core.trainers.get(one.spec.trainer(trial.number))
            assert trial.asked == (trainer is not None) or trial.ended
            assert trial.told == ((one.id, trial.number) in world.told)
            assert trial.told == bool(trial.values or trial.ended)
            if trainer is not None and trainer.open and not trial.ended:
                assert bool(trainer.shelved) == (bool(one.stopped) or not trial.trains)
                assert trainer.proof == one.proof, "trials of one script do not share its proof"


def finish(world: World) -> None:
    """Answer everything, and have every trial report, until there is nothing left to do."""
    world.sick.clear()
    world.send(PoolReopened())
    for trainer in [t for t in world.core.trainers if t.rpartition("-")[0] not in NAMES]:
        world.send(TrainerCancelled(trainer))
    for name in NAMES:
        world.send(StudyResumed(name))
    for number in range(200):
        world.join(1)
        for _ in range(20):
            world.settle()
            world.pass_time(60.0)
        if all(one.over for one in world.core.studies.values()):
            return
        for trainer in [t.id for t in world.core.trainers.values() if t.group is not None]:
            world.report(trainer, random.Random(number).random())
        check(world)
        for one in world.core.studies.values():
            if one.stopped:
                world.send(StudyResumed(one.id))
    raise AssertionError([(one.stopped, one.trials) for one in world.core.studies.values()])


@settings(max_examples=100, deadline=None)
@given(scripts)
def test_no_trial_is_lost_run_twice_or_reported_twice(script: list[tuple[str, int]]) -> None:
    world = play(script)
    finish(world)
    came = [event.spec.trainer for _, event, _ in world.history if isinstance(event, TrialAsked)]
    assert len(came) == len(set(came))
    for one in world.core.studies.values():
        assert one.exhausted or len(one.trials) == one.total
        assert all(trial.told for trial in one.trials)
        if any(len(t.values) == 1 and not t.ended for t in one.trials):
            assert promoted(one) >= 1


def promoted(one: Study) -> int:
    return sum(trial.rung > 0 for trial in one.trials)


def test_the_best_go_on_and_the_others_are_shelved_with_their_state() -> None:
    world = World()
    world.join(6)
    world.send(StudySubmitted(study(trials=3, rungs=(1, 3))))
    world.settle()
    trials = list(world.core.trainers)
    assert trials == ["s-0", "s-1", "s-2"]
    for trainer, value in zip(trials, (0.5, 0.9, 0.1), strict=True):
        world.report(TrainerId(trainer), value)
        world.settle()
    phases = [trainer.phase for trainer in world.core.trainers.values()]
    assert phases == [Phase.SHELVED, Phase.RUNNING, Phase.SHELVED]
    assert world.told == {(StudyId("s"), 0): 0.5, (StudyId("s"), 1): 0.9, (StudyId("s"), 2): 0.1}
    for _ in range(2):
        world.report(TrainerId("s-1"), 0.95)
        world.settle()
    assert world.core.studies[StudyId("s")].over
    assert world.core.trainers[TrainerId("s-1")].shelved.startswith("complete")
