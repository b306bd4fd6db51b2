"""The error hierarchy. The class of an error shows whose fault it is; ``transient``, whether to retry.

Expected situations (a preemption, a timeout) are events or statuses, never errors.
"""

from __future__ import annotations

LONGEST = 1500
"""Maximum length of an error message in characters; longer ones are cut in the middle."""

REFUSAL = "pilot.train: "
"""Prefix of the line with which one of our errors ends a user's script."""

ORPHANED_STATUS = 113
"""The exit status of a training process that has lost its agent."""

GPU_FAILED_STATUS = 114
"""The exit status of a training process whose GPU failed, or had no memory left."""

MATE_LOST_STATUS = 117
"""The exit status of a training process that can no longer compute with those on other nodes of its replica."""

JOINED_OTHERWISE_STATUS = 115
RESUMED_OTHERWISE_STATUS = 116


def one_line(text: str) -> str:
    """``text`` made safe to show: on one line, without control characters, of limited length.

    Errors quote files and peers, whose line breaks and escape sequences must not reach a user's terminal.
    """
    line = " ".join(text[: 2 * LONGEST].splitlines()) + text[2 * LONGEST :][-LONGEST:]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} ... {shown[-LONGEST // 2 :]}"


class PilotError(Exception):
    """Base of all errors that this project raises deliberately.

    ``str(error)`` is one line for the user: what, where, and what to do. ``transient`` says whether the same call may
    succeed if repeated later.
    """

    exit_status = 1

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(one_line(message))
        self.transient = transient


class UserError(PilotError):
    """The input is wrong and the user can fix it. Exit status 2; nothing was changed."""

    exit_status = 2


class SiteError(UserError):
    """A site file is wrong; its author can fix it."""


class LostFileError(UserError):
    """A file is missing or damaged, and nothing else has its content."""


class NoRestartError(UserError):
    """No coordinator is to be started here: another one runs, or the pool was shut down."""


class MateLost(PilotError):
    """A training process with which this one computes has ended, or its node is lost."""

    exit_status = MATE_LOST_STATUS


class JoinedOtherwise(PilotError):
    """A node that joins computes another gradient than one that trains; its process ends before its own counts."""

    exit_status = JOINED_OTHERWISE_STATUS


class ResumedOtherwise(PilotError):
    """The next step's gradient is not that of before the resume; all processes end before that step is done."""

    exit_status = RESUMED_OTHERWISE_STATUS


class SubmitError(PilotError):
    """The batch scheduler rejected a request or did not answer."""


class SubmissionRefused(SubmitError):
    """The batch scheduler refused a job, as it ``said``; another one may be accepted later."""

    def __init__(self, said: str) -> None:
        super().__init__(f"submission failed: {said}", transient=True)
        self.said = said


class ProtocolError(PilotError):
    """A peer violated the protocol; it is disconnected and we continue."""


class CheckpointError(PilotError):
    """A checkpoint could not be written, or failed verification."""


class Unreadable(CheckpointError):
    """A checkpoint or its folder cannot be read now, so nothing is known about it; another try may succeed."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class JournalError(PilotError):
    """The journal cannot be written or read; the coordinator must not continue from it."""


class SolverError(PilotError):
    """A planner gave no usable answer."""


class InvariantError(PilotError):
    """An internal error: an invariant of the core was violated."""
