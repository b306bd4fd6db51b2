"""What failures and successes of one trainer say about nodes."""

from __future__ import annotations

from pilot.core.ids import NodeId
from pilot.core.pool.evidence import Accusation, Evidence, Stage, headline

A, B, C = map(NodeId, "abc")


def test_the_headline_is_the_last_line_before_the_log() -> None:
    assert headline("Traceback:\n  File 'x'\n  ValueError: no data \n\n(log: /run/t1.log)\n") == "ValueError: no data"
    assert headline("Killed") == "Killed"
    assert headline("\n(log: /run/t1.log)") == "no reason was given"


def test_strikes_add_up_on_one_node_and_a_step_there_takes_them_back() -> None:
    evidence = Evidence()
    once = Accusation(A, Stage.START, "it died", 1)
    assert [evidence.struck(once) for _ in range(3)] == [False, False, True]
    assert not evidence.struck(Accusation(B, Stage.START, "it died", 2))
    evidence.worked((A, B), Stage.START)
    assert evidence.strikes == {A: 3, B: 2}, "to start there is not to work there"
    evidence.worked((A,), Stage.RUN)
    assert evidence.strikes == {B: 2}


def test_success_elsewhere_settles_a_doubt_and_success_there_lifts_it() -> None:
    evidence = Evidence(doubts={A: Stage.START, B: Stage.RUN, C: Stage.RUN})
    assert evidence.worked((B,), Stage.START) == [A]
    assert evidence.doubts == {B: Stage.RUN, C: Stage.RUN}
    assert evidence.worked((B,), Stage.RUN) == [C]
    assert evidence.doubts == {}


def test_deaths_are_remembered_for_half_an_hour() -> None:
    evidence = Evidence()
    evidence.died(0.0, A)
    evidence.died(1.0, B)
    assert (evidence.died(1799.9, B), sorted(evidence.deaths)) == (2, [A, B])
    assert (evidence.died(1800.0, B), sorted(evidence.deaths)) == (3, [B])
