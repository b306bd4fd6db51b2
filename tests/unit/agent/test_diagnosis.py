"""The meaning of a process's end."""

from __future__ import annotations

import pytest

from pilot.agent import diagnosis
from pilot.agent.events_effects import RankEnded, WorkerEnded
from pilot.core.errors import GPU_FAILED_STATUS, ORPHANED_STATUS, REFUSAL
from pilot.core.events import ExitCause

TRACEBACK = """step 3
Traceback (most recent call last):
  File "train.py", line 1, in <module>
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 3, in <module>
ValueError: b
"""


@pytest.mark.parametrize(
    ("status", "up", "cause", "detail"),
    [
        (-9, True, ExitCause.DIED, "killed by SIGKILL (by hand, or out of memory)"),
        (
            -7,
            True,
            ExitCause.DIED,
            "killed by SIGBUS (is /dev/shm full? df /dev/shm on that node; or a file that it had mapped was cut short)",
        ),
        (-11, False, ExitCause.DIED, "killed by SIGSEGV"),
        (-64, True, ExitCause.DIED, "killed by SIGRTMAX"),
        (-50, True, ExitCause.DIED, "killed by signal 50"),
        (3, True, ExitCause.RAISED, "the script ended with exit status 3"),
        (ORPHANED_STATUS, True, ExitCause.RAISED, diagnosis._ORPHANED),
        (GPU_FAILED_STATUS, True, ExitCause.DIED, "the script ended with exit status 114"),
        (0, True, ExitCause.RAISED, "the script ended on a node (status 0) while the trainer had not finished"),
    ],
)
def test_an_end_by_itself(status: int, up: bool, cause: ExitCause, detail: str) -> None:
    ended = WorkerEnded("t1", status, "")
    assert diagnosis.on_exit(ended, up=up, stop_reason=None, stuck_reason=None) == (cause, detail)


def test_the_status_is_shown_unless_a_traceback_or_a_refusal_explains_it() -> None:
    def told(status: int, tail: str) -> str:
        return diagnosis.on_exit(WorkerEnded("t1", status, tail), up=True, stop_reason=None, stuck_reason=None)[1]

    assert told(3, "step 3\nno data left\n") == "no data left (exit status 3)"
    assert told(3, "pilot: train.py, line 3: it keeps values\n") == "the script ended with exit status 3"
    assert told(3, "no data left\npilot: it keeps values\n") == "no data left (exit status 3)"
    assert told(1, TRACEBACK) == diagnosis.last_words(TRACEBACK)
    assert told(2, f"{REFUSAL}no batch\n") == "no batch"


def test_a_script_without_session_is_reported_as_one() -> None:
    cause, detail = diagnosis.on_exit(WorkerEnded("t1", 0, "bye"), up=False, stop_reason=None, stuck_reason=None)
    assert cause is ExitCause.RAISED
    assert "without opening a pilot.train session" in detail


def test_what_was_asked_for_is_no_failure_however_it_ended() -> None:
    ended = WorkerEnded("t1", 1, TRACEBACK)
    assert diagnosis.on_exit(ended, True, "cancelled", None) == (ExitCause.STOPPED, "cancelled")


def test_what_the_script_said_as_it_ended_counts_more_than_its_log() -> None:
    ended = WorkerEnded("t1", 1, TRACEBACK)
    told = diagnosis.on_exit(ended, up=True, stop_reason=None, stuck_reason=None, raised="KeyError: 'a'")
    assert told == (ExitCause.RAISED, "KeyError: 'a'")
    _, after = diagnosis.after_loop(ended, 600.0, "finished", "KeyError: 'a'", cut=False)
    assert after == "its script failed after the loop: KeyError: 'a'"


def test_why_a_group_is_over_is_one_line() -> None:
    killed = diagnosis.on_rank(RankEnded("t1", 1, -9, ""))
    assert killed.startswith("its rank process was killed by SIGKILL")
    ended = RankEnded("t1", 1, 127, "a\npython: No such file or directory\n")
    assert diagnosis.on_rank(ended) == "its rank process ended with status 127: python: No such file or directory"
