"""A core that goes through a journal with gaps is soon in step again, and takes no harm from what it cannot apply."""

from __future__ import annotations

from pilot.core.commands import Outcome
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, TrainerFinished, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir import follower, segments
from pilot.rundir.entries import Decision
from pilot.rundir.follower import Follower
from tests.property.test_core import act
from tests.property.world import World


def lived(rounds: int = 12) -> list[Decision]:
    """What a pool with a trainer did that is rescaled again and again."""
    world = World()
    world.join(2)
    act(world, "submit", 3)
    for number in range(rounds):
        world.settle()
        world.step(TrainerId("t0"))
        act(world, "lose" if number % 2 else "join", number)
    world.settle()
    return [Decision(n, at, event, tuple(c)) for n, (at, event, c) in enumerate(world.history, 1)]


def test_it_gives_the_commands_that_were_recorded() -> None:
    core = Follower(Coordinator(World().config))
    for decision in lived():
        assert core.follow(decision) == [(decision.event, list(decision.commands))]


def test_after_a_gap_the_generations_and_plans_are_those_that_there_were() -> None:
    decisions = lived()
    whole, cut = (Follower(Coordinator(World().config)) for _ in range(2))
    for decision in decisions:
        whole.follow(decision)
        if not 20 <= decision.seq < 40:
            cut.follow(decision)
    assert cut.refused == []
    assert cut.core.plan_id == whole.core.plan_id
    [one], [other] = whole.core.trainers.values(), cut.core.trainers.values()
    assert other.generation == one.generation
    for core in (whole, cut):
        core.follow(Decision(len(decisions) + 1, 1e6, TrainerFinished(one.id, one.generation, 99, 990), ()))
    assert (other.closing, other.step) == (one.closing, one.step) == (Outcome.FINISHED, 99)


def test_an_entry_that_cannot_be_applied_leaves_no_trace_wherever_the_state_was_kept() -> None:
    decisions = lived()
    twice: list[Event] = [d.event for d in decisions if isinstance(d.event, TrainerSubmitted)]
    before, follower.SNAPSHOT_EVERY = follower.SNAPSHOT_EVERY, 7
    try:
        core, clean = Follower(Coordinator(World().config)), Coordinator(World().config)
        for decision in decisions:
            core.follow(decision)
            clean.handle(decision.now_s, decision.event)
            if decision.seq > 10:
                assert core.follow(Decision(decision.seq, decision.now_s, twice[0], ())) == []
    finally:
        follower.SNAPSHOT_EVERY = before
    assert len(core.refused) == len(decisions) - 10
    assert core.refused[0].startswith("entry 11 (TrainerSubmitted) cannot be applied: trainer t0 was submitted twice")
    assert segments.state_bytes(core.core) == segments.state_bytes(clean)


def test_a_submission_is_left_out_that_the_core_has_already() -> None:
    core = Follower(Coordinator())
    spec = TrainerSpec(TrainerId("a"))
    core.follow(Decision(1, 0.0, TrainerSubmitted(spec), ()))
    core.follow(Decision(2, 0.0, TrainerSubmitted(spec), ()))
    assert len(core.refused) == 1
    assert list(core.core.trainers) == ["a"]
