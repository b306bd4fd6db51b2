"""A pilot that comes back: the core gets missed events once, and commands that were answered since are left alone."""

from __future__ import annotations

import pytest

from pilot.core.commands import DissolveGroup, StartWorker, StopWorker
from pilot.core.events import ExitCause, GroupBroken, GroupFormed, WorkerExited, WorkerReady
from pilot.core.ids import Generation
from pilot.protocol import wire
from pilot.service.agents.rejoin import Rejoined
from tests.unit.service.stage import A, B, G, Stage, T

LOST = "a member's connection was lost"


def rejoined(stage: Stage, *workers: tuple[str, int, int, bool], uid: str = "") -> Rejoined:
    """The pilot of A comes back with these workers: trainer, generation, step, ready."""
    hello = wire.Hello("p", "secret", "h", "a", 1, workers=[(name, uid, *rest) for name, *rest in workers])
    return Rejoined(stage.core, stage.pending, A, hello, stage.now_s)


@pytest.fixture
def starting() -> Stage:
    stage = Stage()
    stage.starts(A, B, min_nodes=2)
    return stage


@pytest.fixture
def forming(starting: Stage) -> Stage:
    starting.forms(A, B)
    return starting


@pytest.fixture
def training(forming: Stage) -> Stage:
    forming.post(GroupFormed(T, G, 0))
    return forming


def test_nothing_was_missed_where_all_is_as_believed(training: Stage) -> None:
    back = rejoined(training, (T, 1, 9, True))
    assert (back.strays(), back.missed(), back.unanswered()) == ([], [], [])


def test_a_worker_that_is_gone_is_missed_once(training: Stage) -> None:
    back = rejoined(training)
    [event] = back.missed()
    assert isinstance(event, WorkerExited)
    assert (event.node, event.cause) == (A, ExitCause.DIED)
    training.post(event)
    assert back.missed() == []


@pytest.mark.parametrize("ready", [True, False])
def test_a_worker_may_have_become_ready(starting: Stage, ready: bool) -> None:
    assert rejoined(starting, (T, 0, 0, ready)).missed() == [WorkerReady(T, A)] * ready


def test_a_start_that_did_not_arrive_is_ordered_again_and_no_death(starting: Stage) -> None:
    back = rejoined(starting)
    assert back.missed() == []
    assert [(type(given.command), given.command.node) for given in back.unanswered()] == [(StartWorker, A)]


def test_a_group_that_forms_is_formed_anew_unless_it_is_up_by_then(forming: Stage) -> None:
    back = rejoined(forming, (T, 1, 0, True))
    assert back.missed() == [GroupBroken(T, G, f"{LOST} while it formed")]
    forming.post(GroupFormed(T, G, 0))
    assert back.missed() == []


@pytest.mark.parametrize("generation", [0, 7])
def test_a_rank_that_is_gone_breaks_its_group(training: Stage, generation: int) -> None:
    back = rejoined(training, (T, generation, 9, True))
    assert back.missed() == [GroupBroken(T, G, f"{LOST}, and its rank is gone")]


def test_unneeded_workers_and_dissolved_groups_are_ended(training: Stage) -> None:
    dissolve, stop = rejoined(training, (T, 7, 9, True), ("unknown", 1, 1, True)).strays()
    assert isinstance(dissolve, DissolveGroup) and dissolve.generation == Generation(7)
    assert isinstance(stop, StopWorker) and stop.trainer == "unknown"


def test_a_worker_of_another_trainer_of_the_same_name_is_ended_and_is_not_ours(training: Stage) -> None:
    back = rejoined(training, (T, 1, 9, True), uid="of another pool")
    assert [type(stray) for stray in back.strays()] == [StopWorker]
    assert [type(event) for event in back.missed()] == [WorkerExited]
