"""The meaning of an exit: the cause for the core, and a description for people. Pure."""

from __future__ import annotations

import signal

from pilot.agent.events_effects import RankEnded, Watched, WorkerEnded
from pilot.core.commands import ExamineGroup, Outcome
from pilot.core.errors import (
    GPU_FAILED_STATUS,
    JOINED_OTHERWISE_STATUS,
    MATE_LOST_STATUS,
    ORPHANED_STATUS,
    RESUMED_OTHERWISE_STATUS,
)
from pilot.core.events import ExitCause, StallFinding
from pilot.core.pool.evidence import TRACEBACK, is_refusal, last_words
from pilot.protocol import wire

_NO_SESSION = (
    "the script ended without opening a pilot.train session, so there was nothing to train (submit a script for"
    " torchrun with --ddp)"
)

_CAUSES: dict[int, str] = {
    signal.SIGKILL: " (by hand, or out of memory)",
    signal.SIGBUS: " (is /dev/shm full? df /dev/shm on that node; or a file that it had mapped was cut short)",
}
KILLED_FOR_MEMORY = "killed by the kernel, because there was no memory left on its node"
_BY_STATUS = {
    MATE_LOST_STATUS: ExitCause.MATE_LOST,
    JOINED_OTHERWISE_STATUS: ExitCause.JOINED_OTHERWISE,
    RESUMED_OTHERWISE_STATUS: ExitCause.RESUMED_OTHERWISE,
}
_REMARK = "pilot: "
"""The beginning of a session's remarks in a log; none of them ends a script."""
_NOT_FINISHED = "the script ended on a node (status 0) while the trainer had not finished"

_ORPHANED = (
    "its training process could no longer reach its agent: the script has closed files that it did not open"
    " (os.closerange, a library that daemonizes)"
)


def on_exit(
    event: WorkerEnded, up: bool, stop_reason: str | None, stuck_reason: str | None, raised: str = ""
) -> tuple[ExitCause, str]:
    """Cause and detail of a worker's end.

    Parameters
    ----------
    up : whether it had opened its session
    stop_reason : why the coordinator had it stopped; None: it did not
    stuck_reason : why the agent killed it of its own accord; None: it did not
    raised : the exception that ended its script, in one line; "": the log may have one
    """
    if stop_reason is not None:
        return ExitCause.STOPPED, stop_reason
    if stuck_reason is not None:
        return ExitCause.DIED, stuck_reason
    if event.status is None:
        return ExitCause.UNREAD if event.unread else ExitCause.RAISED, event.tail
    if event.status < 0:
        return ExitCause.DIED, KILLED_FOR_MEMORY if event.out_of_memory else _by_signal(-event.status)
    if event.status == ORPHANED_STATUS:  # of an agent that lives
        return ExitCause.RAISED, _ORPHANED
    if event.status in _BY_STATUS:
        return _BY_STATUS[event.status], raised or last_words(event.tail)
    if event.status == GPU_FAILED_STATUS:
        return ExitCause.DIED, raised or _failed(event.tail, event.status)
    if event.status > 0:
        return ExitCause.RAISED, raised or _failed(event.tail, event.status)
    return ExitCause.RAISED, _NOT_FINISHED if up else _NO_SESSION


def after_loop(
    event: WorkerEnded, within_s: float, reason: str, raised: str = "", *, cut: bool
) -> tuple[ExitCause, str]:
    """Cause and detail of the end of a worker whose loop was over, and whose script had ``within_s`` for the code after
    it, because of ``reason``. ``raised``: the exception that ended it; ``cut``: it took longer and was killed.
    """
    status = event.status or 0
    if cut:
        limit = "--after-loop-s" if reason == Outcome.FINISHED.value else reason
        return ExitCause.DIED, f"its code after the training loop was stopped after {within_s:g} s ({limit})"
    if status < 0:
        return ExitCause.DIED, f"its code after the training loop was {_by_signal(-status)}"
    if status > 0:
        failure = _failed(event.tail, status) if event.tail.strip() else f"exit status {status}"
        return ExitCause.RAISED, f"its script failed after the loop: {raised or failure}"
    return ExitCause.STOPPED, "its script has ended"


def on_rank(event: RankEnded) -> str:
    """Why the generation ended, in one line."""
    how = f"ended with status {event.status}" if event.status > 0 else f"was {_by_signal(-event.status)}"
    lines = event.tail.strip().splitlines()
    return f"its rank process {how}" + (f": {lines[-1]}" if lines else "")


def on_examination(
    order: ExamineGroup, answer: wire.RankStalled | None, watched: Watched, silent_s: float
) -> tuple[StallFinding, str]:
    """The result of an examination, also in words. A worker that answers is not stuck, whatever it waits for."""
    if answer is None:
        if watched.progress or order.kill:
            return (StallFinding.SLOW if watched.progress else StallFinding.LOST), watched.text
        return StallFinding.SLOW, f"{watched.text}; waiting for it (--patience-s)"
    if answer.generation == order.generation and answer.waited_s >= silent_s / 2:
        return StallFinding.WAITS, "it is waiting for the others, too"
    return StallFinding.HERE, "it answers"


def _failed(tail: str, status: int) -> str:
    """Why the script failed, with its exit status if its last words do not show it (``sys.exit(3)``)."""
    words = last_words("\n".join(line for line in tail.splitlines() if not line.startswith(_REMARK)))
    if not words:
        return f"the script ended with exit status {status}"
    return words if TRACEBACK in tail or is_refusal(tail) else f"{words} (exit status {status})"


def _by_signal(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    return f"killed by {name}{_CAUSES.get(number, '')}"
