"""When waiting trainers are expected to start."""

from __future__ import annotations

import pytest

from pilot.core.events import Progress, TrainerHeld, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol.pool_status import TrainerStatus
from pilot.service.requests.queue_prognosis import Need, Prognosis, forecast
from tests.unit.service.requests.test_status_view import Shown
from tests.unit.service.stage import A, G, T


def foretold(free: int, room: int, running: list[Need], *waiting: Need) -> list[Prognosis]:
    found = forecast(free, room, running, waiting)
    assert list(found) == [need.name for need in waiting]
    return list(found.values())


def starts(free: int, room: int, running: list[Need], *waiting: Need) -> list[float | None]:
    return [one.starts_in_s for one in foretold(free, room, running, *waiting)]


def test_a_trainer_starts_when_those_before_it_have_ended() -> None:
    long = Need("long", 1, 6 * 3600.0)
    (now,) = foretold(1, 9, [Need("x", 1, None)], Need("a", 1, 60.0))
    assert now == Prognosis(1, 1, 0.0, "x") and now.sentence() == "number 1 of 1 waiting trainer"
    assert starts(0, 9, [long], Need("a", 1, 60.0), Need("b", 1, 60.0)) == [21600.0, 21660.0]
    assert starts(0, 9, [long, Need("short", 1, 30.0)], Need("a", 1, 60.0), Need("b", 1, 5.0)) == [30.0, 90.0]


def test_one_that_needs_fewer_nodes_may_start_before_an_earlier_one() -> None:
    ends = [Need("x", 2, 100.0), Need("y", 2, 200.0)]
    assert starts(0, 9, ends, Need("wide", 4, 1.0), Need("narrow", 2, 500.0)) == [600.0, 100.0]


def test_only_so_many_run_at_once() -> None:
    assert starts(5, 0, [Need("x", 1, 100.0)], Need("a", 1, 50.0), Need("b", 1, 1.0)) == [100.0, 150.0]


@pytest.mark.parametrize(
    ("running", "nodes", "why"),
    [
        ([Need("x", 1, None)], 1, ", start unknown: it is not known how long x will run"),
        ([Need("x", 1, 5.0)], 2, ""),
        ([Need("x", 1, None)], 2, ""),
        ([], 1, ""),
    ],
)
def test_what_cannot_be_foretold_says_why_unless_it_is_for_lack_of_nodes(
    running: list[Need], nodes: int, why: str
) -> None:
    (one,) = foretold(0, 9, running, Need("a", nodes, 60.0))
    assert (one.place, one.starts_in_s) == (1, None)
    assert one.sentence() == f"number 1 of 1 waiting trainer{why}"


HUGE = Need("huge", 9, None)


def test_one_behind_a_trainer_of_unknown_length_is_not_foretold() -> None:
    _, first, second = foretold(0, 9, [Need("x", 1, 30.0)], HUGE, Need("new", 1, None), Need("b", 1, 60.0))
    assert first.sentence() == "number 2 of 3 waiting trainers, expected to start in about 30s"
    assert second.sentence() == "number 3 of 3 waiting trainers, start unknown: it is not known how long new will run"


def test_those_that_wait_show_their_place_and_their_start() -> None:
    stage = Shown()
    stage.trains(A)
    metrics = (("epoch_samples", 1000.0), ("epochs", 3.0))
    stage.at(10.0).post(Progress(T, G, 50, 1, 1000, samples_per_s=2.0, metrics=metrics))
    for name in ("held", "next", "last"):
        stage.post(TrainerSubmitted(TrainerSpec(TrainerId(name), max_nodes=1)))
    stage.post(TrainerHeld(TrainerId("held")))

    def shown(now_s: float) -> dict[str, TrainerStatus]:
        stage.now_s = now_s
        return {row.trainer: row for row in stage.view.trainers().trainers}

    rows = shown(10.0)
    assert [rows[name].place for name in (T, "held", "next", "last")] == [None, None, 1, 2]
    assert (rows["next"].expected_start_s, rows["last"].expected_start_s) == (1010.0, None)
    assert rows["next"].prognosis == "number 1 of 2 waiting trainers, expected to start in about 16m40s"
    assert rows[T].prognosis == "", "it trains"
