"""What users are told about a trainer that waits: its place, its expected start, and what it waits for."""

from __future__ import annotations

import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.events import PoolChanged, Progress, TrainerHeld, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.plan.prognosis import Prognosis
from pilot.core.pool.node_type import NodeType
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol.pool_status import TrainerStatus
from pilot.service.requests.waiting import place_in_queue
from tests.unit.service.requests.test_status_view import Shown
from tests.unit.service.stage import A, B, G, T


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (Prognosis(1, 1, 0.0), "number 1 of 1 waiting trainer"),
        (Prognosis(2, 3, 30.0), "number 2 of 3 waiting trainers, expected to start in about 30s"),
        (Prognosis(2, 3, 30.0, rough=True), "number 2 of 3 waiting trainers, expected to start in roughly 30s"),
        (Prognosis(2, 3, 30.0, turn=True), "number 2 of 3 waiting trainers, expected to start within 30s"),
        (
            Prognosis(1, 1, None, "x"),
            "number 1 of 1 waiting trainer, start unknown: it is not known how long x will run",
        ),
        (Prognosis(1, 1, None), "number 1 of 1 waiting trainer"),
    ],
)
def test_a_place_and_a_start_in_words(one: Prognosis, words: str) -> None:
    assert place_in_queue(one) == words


def busy() -> Shown:
    """A pool of one node, with a trainer that has 1000 s left on it."""
    stage = Shown(CoordinatorConfig(max_parallel_trainers=1))
    stage.trains(A)
    metrics = (("epoch_samples", 1000.0), ("epochs", 3.0))
    for at_s in (10.0, 20.0, 30.0, 40.0, 50.0):
        stage.at(at_s).post(Progress(T, G, 50, 1, 1000, samples_per_s=2.0, metrics=metrics, total_samples=3000.0))
    return stage


def test_those_that_wait_show_their_place_and_their_start() -> None:
    stage = busy()
    for name in ("held", "next", "last"):
        stage.post(TrainerSubmitted(TrainerSpec(TrainerId(name), max_nodes=1)))
    stage.post(TrainerHeld(TrainerId("held")))
    rows: dict[str, TrainerStatus] = {row.trainer: row for row in stage.view.trainers().trainers}
    assert [rows[name].place for name in (T, "held", "next", "last")] == [None, None, 1, 2]
    assert (rows["next"].expected_start_s, rows["last"].expected_start_s) == pytest.approx((1150.0, 2305.0))
    assert rows["next"].prognosis == "number 1 of 2 waiting trainers, expected to start in about 18m20s"
    assert "expected to start in roughly" in rows["last"].prognosis, "next is expected to be as long as the first"
    assert rows[T].prognosis == "", "it trains"


def test_a_submission_and_explain_tell_where_a_trainer_stands() -> None:
    stage, late = busy(), TrainerId("late")
    stage.post(TrainerSubmitted(TrainerSpec(late, max_nodes=1)))
    answer = stage.view.submitted(late)
    words = "number 1 of 1 waiting trainer, expected to start in about 18m20s"
    assert (answer.place, answer.expected_start_s, answer.prognosis) == (1, pytest.approx(1150.0), words)
    assert answer.waits == "waiting for another trainer to end: 1 run at a time"
    assert stage.view.explain(late).sentences[-1] == f"It waits: {words}; {answer.waits}."


def test_a_submission_that_starts_at_once_waits_for_nothing() -> None:
    stage = Shown()
    stage.trains(A)
    stage.post(TrainerSubmitted(TrainerSpec(TrainerId("large"), 4, 4)))
    answer = stage.view.submitted(TrainerId("large"))
    assert (answer.place, answer.expected_start_s) == (1, None)
    assert answer.waits == "waiting for 4 more nodes: it needs 4, and the pool has 1"
    free = Shown()
    free.post(TrainerSubmitted(TrainerSpec(T)))
    assert free.view.submitted(T).place == 1, "no node"


@pytest.mark.parametrize(
    ("types", "words"),
    [
        (("h100",), "it can use none of the nodes that are here: it may only use h100"),
        (("a100",), "waiting for 1 more node: it needs 2, and the pool has 1 that it can use"),
    ],
)
def test_a_trainer_for_other_types_of_nodes_is_not_promised_a_start(types: tuple[str, ...], words: str) -> None:
    stage = Shown(CoordinatorConfig(typed=True))
    stage.post(PoolChanged(joined=(A, B), types=((A, NodeType("a100")), (B, NodeType("a40")))))
    stage.post(TrainerSubmitted(TrainerSpec(T, 2, 2, types=types)))
    answer = stage.view.submitted(T)
    assert (answer.place, answer.expected_start_s, answer.waits) == (1, None, words)
    assert stage.view.explain(T).sentences[-1] == f"It waits: number 1 of 1 waiting trainer; {words}."
