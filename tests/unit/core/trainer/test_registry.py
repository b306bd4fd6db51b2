"""Which trainers are registered, which of them are admitted, and which are forgotten."""

from __future__ import annotations

import pytest

from pilot.core.commands import Outcome
from pilot.core.errors import InvariantError
from pilot.core.events import TrainerResumed
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.registry import Registry
from pilot.core.trainer.spec import TrainerSpec

A, B, C = map(TrainerId, "abc")


def registry(*trainers: TrainerId) -> Registry:
    made = Registry({}, {})
    for trainer in trainers:
        assert made.submit(TrainerSpec(trainer), 1.0) is made.trainers[trainer]
    return made


def ended(its: Registry, trainer: TrainerId, outcome: Outcome = Outcome.FAILED) -> None:
    closed = its.close(trainer, outcome, "why")
    assert closed is not None
    closed.closing, closed.outcome = None, outcome


def test_a_name_is_taken_as_long_as_anything_is_known_of_it() -> None:
    its = registry(A)
    with pytest.raises(InvariantError):
        its.submit(TrainerSpec(A), 1.0)
    ended(its, A)
    its.forget_oldest(0)
    assert (its.trainers, its.past) == ({}, {A: Outcome.FAILED})
    with pytest.raises(InvariantError):
        its.submit(TrainerSpec(A), 1.0)
    its.remove(A)
    its.submit(TrainerSpec(A), 1.0)
    assert list(its.open) == [A]


def test_only_the_last_ended_trainers_are_kept() -> None:
    its = registry(A, B, C)
    ended(its, A)
    ended(its, C)
    its.forget_oldest(2)
    assert (list(its.trainers), its.past) == ([A, B, C], {})
    its.forget_oldest(1)
    assert (list(its.trainers), its.past) == ([B, C], {A: Outcome.FAILED})
    its.remove(B)
    assert B in its.trainers, "it has not ended"


def test_a_resumed_trainer_is_last_with_its_new_or_old_budget() -> None:
    its = registry(A, B)
    assert its.resume(TrainerResumed(A, 2.0), 1.0) is None, "it has not ended"
    its.trainers[A].usage.allow(100.0)
    ended(its, A)
    assert its.resume(TrainerResumed(A, None), 1.0) is its.trainers[A]
    assert (list(its.trainers), list(its.open), its.trainers[A].usage.budget_s) == ([B, A], [B, A], 100.0)
    ended(its, A)
    its.resume(TrainerResumed(A, 2.0), 0.5)
    assert its.trainers[A].usage.budget_s == 14_400.0
    ended(its, A, Outcome.FINISHED)
    assert its.resume(TrainerResumed(A, 2.0), 1.0) is None


def test_the_first_trainers_that_are_neither_held_nor_stopped_are_admitted() -> None:
    its = registry(A, B, C)
    its.stop(its.trainers[C], "spent")
    assert its.hold(C, "") is None, "it ends"
    assert [t.id for t in its.admitted(5)] == [A, B]
    assert [t.id for t in its.admitted(1)] == [A]


def test_the_first_trainers_and_those_that_hold_nodes_are_ahead() -> None:
    its = registry(A, B, C)

    def ahead(most: int) -> list[TrainerId]:
        return [trainer.id for trainer in its.ahead(most)]

    assert [ahead(2), ahead(5)] == [[A, B], [A, B, C]]
    its.trainers[C].target = [NodeId("x")]
    assert ahead(1) == [A, C]
    assert [trainer.id for trainer in its.queued(its.ahead(1))] == [B]
    its.hold(A, "by its user")
    assert ahead(1) == [B, C]


def test_one_that_is_held_and_starts_from_scratch_is_the_last_in_both_orders() -> None:
    its = registry(A, B)
    assert its.hold(A, "its checkpoints are damaged") is its.trainers[A]
    its.resume(TrainerResumed(A, from_scratch=True), 1.0)
    assert list(its.trainers) == list(its.open) == [B, A]
