"""Ranks that come to the same meetings, or join while the others are in the middle of theirs."""

from __future__ import annotations

import pytest

from pilot.train.ranks.collectives import Collectives
from pilot.train.state.progress import END_OF_EPOCH, STOP, Agreement, AgreementLog, Sums
from tests.unit.train.twin import Twin, together

EVALUATION, OTHER = 7, 3


def one_each(rank: int, ranks: int) -> Sums:
    return {"ranks": 1.0, f"rank {rank}": 0.1, "third": 1 / ranks}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_get_the_sums_by_name(count: int) -> None:
    outcomes = together(count, lambda twin: Collectives(twin, twin.training).hold(EVALUATION, one_each))
    assert outcomes[0] is not None
    assert outcomes[0]["ranks"] == count
    assert outcomes[0][f"rank {count - 1}"] == 0.1
    assert all(outcome == outcomes[0] for outcome in outcomes)


def test_a_newcomer_that_is_about_to_train_attends_what_the_others_do_before() -> None:
    def script(twin: Twin) -> tuple[int, int, dict[str, float]]:
        meetings, training = Collectives(twin, twin.training), twin.training
        if twin.enter().rank != 1:
            training.user |= meetings.hold(EVALUATION, one_each) or {}
            meetings.hold(EVALUATION, one_each)
            meetings.hold(END_OF_EPOCH, lambda _rank, _ranks: {})
            meetings.here()
        meetings.align()
        return training.position.epoch, training.agreements.count((0, 0)), training.user

    epoch, held, values = together(3, script)[0]
    assert (epoch, held, values["ranks"]) == (1, 3, 2.0)
    assert together(3, script) == [(epoch, held, values)] * 3


def test_a_newcomer_at_the_end_of_an_epoch_reads_what_was_agreed_and_joins_in_the_rest() -> None:
    def script(twin: Twin) -> list[Sums | None]:
        twin.training.agreements.add(Agreement(0, 0, EVALUATION, {"ranks": 5.0}))
        meetings = Collectives(twin, twin.training)
        known = []
        if twin.enter().rank == 0:  # only a newcomer repeats what led to the entry
            known = [meetings.hold(EVALUATION, one_each)]
        else:
            meetings._held[EVALUATION] = 1
        return [*known, meetings.hold(EVALUATION, one_each), meetings.hold(END_OF_EPOCH, one_each)]

    newcomer, other = together(2, script)
    assert newcomer[0] == {"ranks": 5.0}
    assert newcomer[1:] == other
    assert all(outcome is not None and outcome["ranks"] == 2 for outcome in other)


def test_those_who_are_further_behind_meet_first() -> None:
    def script(twin: Twin) -> tuple[Sums | None, bool]:
        meetings = Collectives(twin, twin.training)
        topics = [(END_OF_EPOCH,), (OTHER, END_OF_EPOCH), (EVALUATION, OTHER, END_OF_EPOCH)][twin.enter().rank]
        outcome = None
        for topic in topics:
            outcome = meetings.hold(topic, one_each)
        return outcome, twin.training.position.epoch == 1

    outcomes = together(3, script)
    assert all(over for _, over in outcomes)


def test_whoever_asks_to_stop_stops_all() -> None:
    def script(twin: Twin) -> bool:
        asked = {STOP: 1.0} if twin.enter().rank == 1 else {}
        Collectives(twin, twin.training).hold(END_OF_EPOCH, lambda _rank, _ranks: asked)
        return twin.training.position.stopped

    assert together(3, script) == [True] * 3


def test_a_script_that_is_behind_its_state_holds_no_meeting() -> None:
    def script(twin: Twin) -> Sums | None:
        meetings = Collectives(twin, twin.training)
        twin.training.position.step = 20  # it took over a state in the middle of its evaluation
        return meetings.hold(EVALUATION, one_each)

    assert together(1, script) == [None]


def test_the_minutes_of_two_places_are_kept_and_travel() -> None:
    minutes = AgreementLog()
    for step in (4, 8, 8, 12):
        minutes.add(Agreement(1, step, EVALUATION, {"loss": float(step)}))
    copied = AgreementLog(minutes.rows())
    assert copied.of((1, 4), EVALUATION) == []
    assert copied.of((1, 8), EVALUATION) == [{"loss": 8.0}] * 2
    assert copied.of((1, 8), OTHER) == []
    assert copied.count((1, 12)) == 1
