"""Trainers without a known curve are profiled: few scale-ups, none below its minimum, and nothing hangs."""

from __future__ import annotations

import pytest

from pilot import planners
from pilot.core.commands import FormGroup, Solve
from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import Measured, RescaleCosts
from pilot.core.curves.profile import KEPT_RATES, MEASURE_S, REACH_S, UNASKED_S, Profile
from pilot.core.curves.profiles import CALM_S, YOUNG_S, Profiler, give_up, note
from pilot.core.events import GroupFormed, PlanFailed, ProfileDue, Progress, TrainerCancelled, TrainerSubmitted
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.plan.objective import Objective, scaling_efficiency, throughput
from pilot.core.trainer.proof import Proof, ProofState
from pilot.core.trainer.spec import Profiling, TrainerSpec
from pilot.core.trainer.trainer import Group, Trainer
from tests.property.world import World

A, B, C, D = (TrainerId(name) for name in "abcd")
PLAN = planners.make("dp")
TRUTH = Curve.of([(1, 100.0), (4, 350.0), (8, 600.0), (64, 3000.0)])


def submit(world: World, name: TrainerId, most: int = 16, profile: Profiling = Profiling.AUTO, least: int = 1) -> None:
    world.submit(name, least, most, profile=profile)
    world.settle(PLAN)


def trainer_of(name: TrainerId, nodes: int, most: int, profile: Profiling = Profiling.AUTO) -> Trainer:
    """A trainer that holds this many nodes."""
    spec = TrainerSpec(name, 1, most, profile=profile)
    return Trainer(spec, Measured(spec), [NodeId(f"{name}{n}") for n in range(nodes)], profile=Profile.of(spec))


def train(world: World, seconds: int = 8) -> None:
    """All groups train this long, and report their true rates every second."""
    for _ in range(seconds):
        for trainer in list(world.core.trainers.values()):
            if trainer.group is not None and trainer.open:
                rate = TRUTH.at(len(trainer.group.members))
                step = world.steps[trainer.id] = world.steps.get(trainer.id, 0) + 1
                world.send(Progress(trainer.id, trainer.group.generation, step, 0, 32 * step, rate))
                world.settle(PLAN)


def sizes(world: World, name: TrainerId) -> list[int]:
    """The sizes of its groups, in order."""
    return [len(group.members) for group in world.given(FormGroup) if group.trainer == name]


def pool(nodes: int, most: int = 10) -> World:
    world = World(CoordinatorConfig(max_parallel_trainers=most))
    if nodes:
        world.join(nodes)
    return world


def calm_pool(nodes: int, objective: Objective = scaling_efficiency) -> World:
    """A pool that changes every ten hours."""
    world = World(CoordinatorConfig(objective=objective))
    world.join(nodes)
    world.core.changes.mean_s = 36000.0
    return world


def submit_long(world: World, name: TrainerId, most: int = 3, samples: float = 1e9) -> None:
    world.submit(name, 1, most, profile=Profiling.AUTO, samples=samples)
    world.settle(PLAN)


@pytest.mark.parametrize("objective", [throughput, scaling_efficiency])
def test_auto_measures_one_count_after_the_other_once_the_first_rate_has_come_by_itself(objective: Objective) -> None:
    world = calm_pool(16, objective)
    submit_long(world, A, most=16)
    submit_long(world, B, most=16)
    profile = world.core.trainers[A].profile
    assert profile.wanted and profile.pin is None
    train(world, 20)
    assert len(world.core.trainers[A].measured.rates) == 1, "a plan is due after a minute"
    for _ in range(150):
        train(world, 1)
        assert len(profile.left) <= 1
    rates = world.core.trainers[A].measured.rates
    assert len(rates) >= 3 and profile.wanted
    assert all(rate == pytest.approx(TRUTH.at(n)) for n, rate in rates.items())


def test_in_a_narrow_range_trainers_are_measured_too_and_within_their_share_of_node_time() -> None:
    world = calm_pool(4)
    submit_long(world, A, samples=30000.0)
    submit_long(world, B)
    train(world, 100)
    assert world.core.trainers[A].profile.node_s == 0, "it has minutes left, of which a profile may use 1%"
    assert len(world.core.trainers[B].measured.rates) > 1
    assert world.core.trainers[B].profile.node_s > 0


def test_a_count_that_was_not_reached_is_not_tried_again_at_once() -> None:
    profile = Profile(wanted=True, lasting=True)
    trainer = trainer_of(A, 1, most=3)
    trainer.profile = profile
    profile.begin(0.0, [3])
    assert not give_up(REACH_S - 1, trainer)
    assert give_up(REACH_S, trainer)
    assert profile.pin is None and profile.wanted and not profile.considers(REACH_S, 0)
    assert profile.considers(REACH_S, 1), "another rate was measured"
    assert profile.considers(REACH_S + YOUNG_S, 0)
    assert profile.node_s == 3 * REACH_S


def test_a_plan_is_asked_for_if_none_has_considered_a_trainer_for_long() -> None:
    world = pool(4)
    submit(world, A, most=3)
    profile = world.core.trainers[A].profile
    assert profile.pin is None and profile.due_s == profile.by_s + UNASKED_S
    world.send(ProfileDue(A))
    assert profile.by_s < float("inf"), "its time has not come"
    world.pass_time(profile.due_s - world.now_s)
    assert profile.by_s > world.now_s, "it was considered, and rests"


def test_a_plan_by_measured_rates_looks_ahead_as_far_as_the_pool_is_calm() -> None:
    world = calm_pool(4)
    submit_long(world, A)
    submit_long(world, B)
    train(world, 100)
    ahead_s = [solve.problem.t_fwd_s for solve in world.given(Solve)]
    assert ahead_s[0] == 120.0 and max(ahead_s) >= 3600.0
    world.join(1)
    assert world.given(Solve)[-1].problem.t_fwd_s == 120.0


def test_only_the_last_reports_are_kept() -> None:
    profile = Profile(wanted=True)
    for second in range(2 * KEPT_RATES):
        profile.report(float(second), 4, 100.0 + second)
    assert profile.rates == [100.0 + second for second in range(KEPT_RATES, 2 * KEPT_RATES)]


def test_inverse_measures_each_count_from_the_largest_down() -> None:
    world = pool(6)
    submit(world, A, profile=Profiling.INVERSE, least=2)
    train(world, 40)
    assert sizes(world, A)[:5] == [6, 5, 4, 3, 2]
    assert world.core.trainers[A].measured.rates == {n: TRUTH.at(n) for n in range(2, 7)}


def test_only_allowed_sizes_are_measured_and_left_to_a_lender() -> None:
    world = pool(8)
    world.submit(A, 1, 8, sizes=(2, 8))
    world.settle(PLAN)
    world.submit(B, 1, 6, sizes=(1, 3, 6), profile=Profiling.INVERSE)
    world.settle(PLAN)
    assert [len(world.core.trainers[name].target) for name in (A, B)] == [2, 6]
    train(world, 12)
    assert sizes(world, B)[:2] == [6, 3]


def test_a_profile_keeps_its_count_whatever_plans_are_made_meanwhile() -> None:
    world = pool(8)
    submit(world, A, profile=Profiling.INVERSE)
    submit(world, B, most=1, profile=Profiling.NEVER)
    for _ in range(3):
        world.join(1)
        world.settle(PLAN)
        assert len(world.core.trainers[A].target) == 7, "all but B's minimum"
    group = world.core.trainers[A].group
    world.lose([group.members[0]])
    world.settle(PLAN)
    assert len(world.core.trainers[A].target) == 7, "another node takes the place of the lost one"


def test_a_profile_borrows_from_the_least_recently_interrupted_and_gives_back() -> None:
    world = pool(12)
    submit(world, A, most=6, profile=Profiling.NEVER)
    submit(world, B, most=6, profile=Profiling.NEVER)
    assert [len(world.core.trainers[name].target) for name in (A, B)] == [6, 6]
    submit(world, C, most=4, profile=Profiling.INVERSE)
    assert [len(world.core.trainers[name].target) for name in (A, B, C)] == [2, 6, 4]
    assert world.core.trainers[C].profile.lender == A
    train(world, 7)
    assert world.core.trainers[C].profile.lender is None
    assert world.core.trainers[C].measured.rates[4] == TRUTH.at(4)
    assert sum(len(world.core.trainers[name].target) for name in (A, B)) >= 8, "what it does not need is given back"


def profiler(trainers: list[Trainer], objective: Objective = scaling_efficiency) -> Profiler:
    return Profiler(0.0, 14, trainers, RescaleCosts(5), CALM_S, 120.0, objective, {})


def test_one_borrows_at_a_time() -> None:
    lenders = [trainer_of(name, 6, most=6, profile=Profiling.NEVER) for name in (A, B)]
    first, second = (trainer_of(name, 0, most=4, profile=Profiling.INVERSE) for name in (C, D))
    assert profiler([*lenders, first, second]).pins() == {A: 3, C: 4}
    assert (first.profile.lender, second.profile.wanted, second.profile.pin) == (A, True, None), "B could lend, too"


def test_a_trainer_without_a_weight_counts_as_it_is() -> None:
    one = trainer_of(A, 2, most=4)
    value = profiler([one], throughput)._value(one)
    assert value == one.value(throughput)
    assert value.at(2) > 0


def test_lenders_keep_their_minimum_and_a_profile_waits_for_enough_nodes() -> None:
    world = pool(6)
    submit(world, A, most=6, least=5, profile=Profiling.NEVER)
    submit(world, B, most=6, profile=Profiling.INVERSE)
    assert len(world.core.trainers[A].target) >= 5
    assert (world.core.trainers[B].profile.wanted, world.core.trainers[B].profile.pin) == (True, None)
    train(world)
    world.join(4)
    world.settle(PLAN)
    assert world.core.trainers[B].profile.pin == len(world.core.trainers[B].target) >= 4


def test_a_borrower_that_is_cancelled_gives_back() -> None:
    world = pool(8)
    submit(world, A, most=8, profile=Profiling.NEVER)
    submit(world, B, most=4, profile=Profiling.INVERSE)
    assert [len(world.core.trainers[name].target) for name in (A, B)] == [4, 4]
    world.send(TrainerCancelled(B))
    world.settle(PLAN)
    assert len(world.core.trainers[A].target) == 8


def test_without_plans_and_without_reports_a_profile_comes_to_an_end() -> None:
    world = pool(8)
    world.submit(A, 1, 8, profile=Profiling.INVERSE)
    for _ in range(8):
        world.send(PlanFailed(world.core.plan_id, "the solver died"))
        world.pass_time(REACH_S + 1)
    assert not world.core.trainers[A].profile.wanted
    world.settle(PLAN)
    submit(world, B, most=4, profile=Profiling.INVERSE)
    for _ in range(4):
        world.settle(PLAN)
        world.pass_time(MEASURE_S + REACH_S)
    world.settle(PLAN)
    assert not world.core.trainers[B].profile.wanted
    assert world.core.due_s() == float("inf")


@pytest.mark.parametrize("most", [None, 10])
def test_a_trainer_that_cannot_start_is_not_considered_by_time_alone(most: int | None) -> None:
    world = World(CoordinatorConfig(max_parallel_trainers=most))
    world.join(8)
    submit(world, A, most=32, least=16)
    assert world.core.due_s() == float("inf"), "a replay would not end"
    submit(world, B, most=8, least=4)
    train(world)
    assert world.core.due_s() < float("inf")
    world.lose(list(world.core.trainers[B].target)[:6])
    world.settle(PLAN)
    assert world.core.due_s() == float("inf"), "nor where one no longer can"


def test_time_without_a_pool_counts_for_no_profile() -> None:
    world = pool(4)
    world.submit(A, 1, 4, profile=Profiling.INVERSE)
    profile = world.core.trainers[A].profile
    world.pass_time(36000.0)
    profile.next(world.now_s)
    assert profile.node_s == 4 * REACH_S


def test_a_rate_beside_a_check_is_not_known() -> None:
    trainer = trainer_of(A, nodes=1, most=4, profile=Profiling.INVERSE)
    trainer.group = Group(Generation(1), tuple(trainer.target))
    trainer.proof = Proof(ProofState.RUNNING, node=trainer.target[0])
    for second in range(20):
        note(float(second), trainer, Progress(A, Generation(1), second, 0, 32, 100.0))
    assert not trainer.profile.known


def test_a_count_is_given_up_after_the_documented_time() -> None:
    world = pool(4)
    world.submit(A, 1, 4, profile=Profiling.INVERSE)
    profile = world.core.trainers[A].profile
    assert (profile.pin, profile.by_s) == (4, world.now_s + 300.0)
    world.settle(PLAN)
    formed_s = next(now_s for now_s, event, _ in world.history if isinstance(event, GroupFormed))
    assert profile.by_s == formed_s + 120.0
    for trainer in (A, B):
        world.send(ProfileDue(trainer))
    assert profile.pin == 4, "its time is not over, and of who is not there it is nobody's"


def test_a_known_rate_of_another_count_ends_no_measurement() -> None:
    profile = Profile(wanted=True)
    profile.begin(0.0, [8, 1])
    assert not any(profile.report(float(second), 4, 100.0) for second in range(10))
    assert (profile.left, set(profile.known)) == ([8, 1], {4})


def test_a_noisy_rate_counts_when_its_time_is_over() -> None:
    world = pool(4)
    submit(world, A, most=4, profile=Profiling.INVERSE)
    for number in range(int(MEASURE_S)):
        group = world.core.trainers[A].group
        rate = 100.0 + 400.0 * (number % 2)
        world.send(Progress(A, group.generation, number + 1, 0, 32, rate))
    assert world.core.trainers[A].profile.pin == 4
    world.pass_time(1.0)
    assert world.core.trainers[A].profile.pin == 3
    assert 100.0 <= world.core.trainers[A].measured.rates[4] <= 500.0


def test_a_rate_that_scatters_takes_more_reports_than_one_that_does_not() -> None:
    taken = []
    for scatter in (0.0, 40.0):
        world = pool(4)
        submit(world, A, most=4, profile=Profiling.INVERSE)
        while world.core.trainers[A].profile.pin == 4:
            group = world.core.trainers[A].group
            step = world.steps[A] = world.steps.get(A, 0) + 1
            world.send(Progress(A, group.generation, step, 0, 32, 300.0 + scatter * (step % 2)))
        taken.append(world.steps[A])
    assert taken == [5, 20]


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        (TrainerSpec(A, 1, 4, profile=Profiling.AUTO), True),
        (TrainerSpec(A, 1, 3, profile=Profiling.AUTO), True),
        (TrainerSpec(A, 2, 2, profile=Profiling.AUTO), False),
        (TrainerSpec(A, 1, 3, profile=Profiling.INVERSE), True),
        (TrainerSpec(A, 2, 2, profile=Profiling.INVERSE), False),
        (TrainerSpec(A, 1, 64, TRUTH, profile=Profiling.AUTO), False),
        (TrainerSpec(A, 1, 64, TRUTH, profile=Profiling.AUTO, reprofile=True), True),
        (TrainerSpec(A, 1, 64), False),
    ],
)
def test_which_trainers_are_profiled(spec: TrainerSpec, wanted: bool) -> None:
    world = pool(0)
    world.send(TrainerSubmitted(spec))
    assert world.core.trainers[A].profile.wanted is wanted
    assert not world.given(Solve)


def test_the_next_trainer_of_a_script_starts_with_its_curve() -> None:
    world = pool(16)
    world.submit(A, 1, 16, profile=Profiling.INVERSE, script="train.py")
    world.settle(PLAN)
    train(world, 12)
    others = {B: {"script": "train.py"}, C: {"script": "train.py", "reprofile": True}, D: {"script": "other.py"}}
    for name, more in others.items():
        world.submit(name, profile=Profiling.AUTO, **more)
    known = {name: world.core.trainers[name] for name in others}
    assert [trainer.profile.wanted for trainer in known.values()] == [False, True, True]
    assert [trainer.spec.known_from for trainer in known.values()] == ["trainer a", "", ""]
    curve = known[B].measured.curve
    assert curve.at(16) == pytest.approx(TRUTH.at(16), rel=0.02)
    assert curve.at(64) < 0.95 * 4 * curve.at(16), "beyond what was measured it is an estimate"
