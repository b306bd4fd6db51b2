"""Whether a trainer's script has been checked, and what follows: the tables of transcripts/checked.txt in small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pilot.core.commands import CheckScript
from pilot.core.curves.measured import Measured
from pilot.core.errors import UserError
from pilot.core.events import Progress
from pilot.core.ids import Generation, NodeId, StudyId, TrainerId
from pilot.core.study.events import StudySubmitted
from pilot.core.trainer.proof import Proof, ProofState
from pilot.core.trainer.spec import Checking, TrainerSpec
from pilot.core.trainer.trainer import Group, Trainer
from pilot.core.trainer.transitions import note
from tests.property.test_studies import study
from tests.property.world import World, generous_plan

T, A, B = TrainerId("t"), NodeId("a"), NodeId("b")


def spec(check: Checking = Checking.AUTO, least: int = 1, unchecked: str = "") -> TrainerSpec:
    return TrainerSpec(T, least, 4, check=check, unchecked=unchecked)


@pytest.mark.parametrize(
    ("given", "state"),
    [
        (TrainerSpec(T), ProofState.OFF),
        (spec(), ProofState.WAITING),
        (spec(Checking.REQUIRE), ProofState.WAITING),
        (spec(least=2), ProofState.UNCHECKED),
        (spec(unchecked="4 processes train on each node"), ProofState.UNCHECKED),
        (replace(spec(), sizes=(2, 4)), ProofState.UNCHECKED),
        (spec(Checking.OFF, least=2), ProofState.OFF),
    ],
)
def test_the_first_proof_of_a_trainer(given: TrainerSpec, state: ProofState) -> None:
    assert Proof.of(given).state is state


@pytest.mark.parametrize(("least", "unchecked"), [(2, ""), (1, "it is a script for torchrun (--ddp)")])
def test_an_uncheckable_script_cannot_require_a_check(least: int, unchecked: str) -> None:
    with pytest.raises(UserError, match=r"--check require: .*; with --check auto it grows unchecked$"):
        spec(Checking.REQUIRE, least, unchecked)


@pytest.mark.parametrize(
    ("state", "checking", "grows"),
    [
        (ProofState.OFF, Checking.OFF, True),
        (ProofState.WAITING, Checking.AUTO, False),
        (ProofState.RUNNING, Checking.AUTO, False),
        (ProofState.PASSED, Checking.REQUIRE, True),
        (ProofState.DIFFERS, Checking.AUTO, False),
        (ProofState.UNCHECKED, Checking.AUTO, True),
        (ProofState.UNCHECKED, Checking.REQUIRE, False),
    ],
)
def test_which_trainers_may_grow(state: ProofState, checking: Checking, grows: bool) -> None:
    given = spec(checking)
    trainer = Trainer(given, Measured(given), proof=Proof(state, "why"))
    stays = trainer.stays_at()
    assert (stays is None) == grows
    if stays is not None:
        assert stays[0] == 1
        assert trainer.proof.text in stays[1]


def test_a_rate_beside_a_check_is_no_point_of_the_curve() -> None:
    trainer = Trainer(spec(), Measured(spec()), proof=Proof(ProofState.RUNNING, node=A))
    trainer.group = Group(Generation(1), (A,))
    progress = Progress(T, Generation(1), 1, 0, 32, samples_per_s=10.0)
    note(1.0, trainer, progress)
    assert not trainer.measured.rates
    trainer.proof = Proof(ProofState.RUNNING, node=B)  # that of another trial of its study
    note(2.0, trainer, progress)
    assert trainer.measured.rates == {1: 10.0}


def test_a_resumed_trainer_is_checked_again() -> None:
    trainer = Trainer(spec(), Measured(spec()), proof=Proof(ProofState.DIFFERS, "its loss is a sum"))
    trainer.reopen()
    assert trainer.proof == Proof(ProofState.WAITING)


def _studied(trials: int) -> World:
    """As many trials as nodes, of a script that is to be checked, each on a node of its own."""
    world = World()
    world.join(trials)
    world.send(StudySubmitted(study(StudyId("other"), trials=trials)))
    while others := [n for n, one in enumerate(world.pending) if not isinstance(one, CheckScript)]:
        world.complete(others[0], generous_plan)
    return world


def checks(world: World) -> int:
    """How many checks run."""
    return sum(isinstance(one, CheckScript) for one in world.pending)


def test_a_study_is_checked_once_and_its_trials_wait_for_that() -> None:
    world = _studied(3)
    trials = list(world.core.trainers.values())
    assert len(trials) == 3
    assert all(len(trial.target) == 1 for trial in trials)
    assert checks(world) == 1
    world.join(3)
    world.settle()
    assert {trial.proof.state for trial in trials} == {ProofState.PASSED}
    assert any(len(trial.target) == 2 for trial in trials)


def test_where_the_checked_trial_ends_another_one_is_checked() -> None:
    world = _studied(2)
    first = next(t for t in world.core.trainers.values() if t.proof.node in t.workers)
    node = first.proof.node
    assert node is not None
    world.lose([node])
    assert checks(world) == 1
    (other,) = [t for t in world.core.trainers.values() if t is not first]
    assert other.proof.node in other.workers
    check = next(n for n, one in enumerate(world.pending) if isinstance(one, CheckScript))
    world.complete(check, generous_plan, ok=False)
    assert first.proof == other.proof
    assert first.proof.state is ProofState.UNCHECKED
