"""The training processes of a worker speak as one."""

from __future__ import annotations

from pilot.agent.worker import LocalRanks
from pilot.protocol import wire


def waiting(seconds: float, *, summing: bool = True) -> wire.RankStalled:
    return wire.RankStalled("t", 1, 5, seconds, summing)


def test_a_worker_is_up_when_its_last_process_is() -> None:
    unison = LocalRanks(3)
    assert [unison.combine(process, wire.WorkerReady("t", 1.0 + process)) for process in (2, 0)] == [None, None]
    assert unison.combine(1, wire.WorkerReady("t", 9.0)) == wire.WorkerReady("t", 9.0)


def test_a_pause_is_forwarded_once_in_each_generation() -> None:
    unison, first, second = LocalRanks(2), wire.RankPaused("t", 1, 40), wire.RankPaused("t", 2, 50)
    assert [unison.combine(0, first), unison.combine(0, first), unison.combine(0, second)] == [None, None, None]
    assert unison.combine(1, first) == first
    assert unison.combine(1, second) == second
    assert [unison.combine(1, first), unison.combine(0, first)] == [None, first]


def test_messages_of_one_process_for_all_are_forwarded_at_once() -> None:
    unison = LocalRanks(2)
    for message in (wire.Progress("t", 1, 5, 0, 80), wire.Remark("t", "hm"), waiting(30.0)):
        assert unison.combine(1, message) == message


def test_an_examination_is_answered_when_all_have_answered_with_the_shortest_wait() -> None:
    unison = LocalRanks(3)
    unison.begin_examination()
    assert unison.combine(2, waiting(30.0)) is None
    assert unison.combine(2, waiting(60.0)) is None
    assert unison.combine(0, waiting(0.0, summing=False)) is None
    assert unison.silent() == [1]
    assert unison.combine(1, waiting(1.0)) == waiting(0.0, summing=False)
    assert unison.silent() == []
    unison.begin_examination()
    assert unison.silent() == [0, 1, 2]


def test_a_wait_after_an_unanswered_examination_is_forwarded_at_once() -> None:
    unison = LocalRanks(2)
    unison.begin_examination()
    assert unison.combine(0, waiting(5.0)) is None
    unison.end_examination()
    assert unison.combine(0, waiting(10.0)) == waiting(10.0)


def test_one_process_speaks_for_itself() -> None:
    unison = LocalRanks(1)
    unison.begin_examination()
    for message in (wire.WorkerReady("t", 1.0), wire.RankPaused("t", 1, 40), waiting(30.0), wire.WorkerReady("t", 1.0)):
        assert unison.combine(0, message) == message
