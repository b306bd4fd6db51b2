"""What failures and successes of one trainer say about nodes."""

from __future__ import annotations

import textwrap

import pytest

from pilot.core.ids import NodeId
from pilot.core.pool.evidence import HEAD_MAX, Accusation, Evidence, Stage, headline, last_words

A, B, C = map(NodeId, "abc")


def test_the_headline_is_the_last_line_before_the_log() -> None:
    assert headline("Traceback:\n  File 'x'\n  ValueError: no data \n\n(log: /run/t1.log)\n") == "ValueError: no data"
    assert headline("Killed") == "Killed"
    assert headline("\n(log: /run/t1.log)") == "no reason was given"


KEYS = ", ".join(f'"layers.{n}.weight"' for n in range(1000))


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("epoch 1\npilot.train: train.py, line 3: no\n", "train.py, line 3: no"),
        (
            """
            Traceback (most recent call last):
              File "train.py", line 1, in <module>
            KeyError: 'a'

            During handling of the above exception, another exception occurred:

            Traceback (most recent call last):
              File "train.py", line 3, in <module>
                load(x)
                ~~~~^^^
            ValueError: first line
            second line
            """,
            "ValueError: first line",
        ),
        (
            """
            [rank0]: Traceback (most recent call last):
            [rank0]:   File "train.py", line 3, in <module>
            [rank0]: RuntimeError: Error(s) in loading state_dict for Net:
            [rank0]: \tsize mismatch for a.weight
            [rank0]: \tsize mismatch for b.weight
            """,
            "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for a.weight",
        ),
        (
            """
              + Exception Group Traceback (most recent call last):
              |   File "train.py", line 3, in <module>
              | ExceptionGroup: two failed (2 sub-exceptions)
              +-+---------------- 1 ----------------
                | Traceback (most recent call last):
                |   File "train.py", line 1, in <module>
                | ValueError: a
                +---------------- 2 ----------------
                | Traceback (most recent call last):
                |   File "train.py", line 2, in <module>
                | KeyError: 'b'
                +------------------------------------
            """,
            "KeyError: 'b'",
        ),
        (
            """
            Traceback (most recent call last):
              File "train.py", line 3, in <module>
                import helpers
              File "helpers.py", line 1
                foo(
                   ^
            SyntaxError: '(' was never closed
            wandb: run finished
            """,
            "SyntaxError: '(' was never closed",
        ),
        ("Traceback (most recent call last):\n  File 'x', line 1\n", "File 'x', line 1"),
        ("Traceback (most recent call last):\n", "Traceback (most recent call last):"),
    ],
)
def test_last_words_are_one_line_with_the_error(log: str, why: str) -> None:
    assert last_words(textwrap.dedent(log)) == why


def test_last_words_keep_the_head_of_a_long_message() -> None:
    long = f"Traceback (most recent call last):\n  File 'x', line 1\nRuntimeError: Missing key(s): {KEYS}\n"
    assert last_words(long).startswith('RuntimeError: Missing key(s): "layers.0.weight"')
    assert len(last_words(long)) == len(last_words(KEYS)) == HEAD_MAX


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
