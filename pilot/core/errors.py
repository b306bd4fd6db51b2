"""One small tree of errors. Each says whose fault it is and whether to retry.

What is expected (a preemption, a time-out) is an event or a status and never one of these.
"""

from __future__ import annotations

LONGEST = 1500
"""Characters of an error's line: what is longer is cut in its middle."""

REFUSAL = "pilot.train: "
"""How the line begins in which an error of ours ends a user's script."""


def one_line(text: str) -> str:
    """``text`` as it can be shown to anybody: on one line, without control characters, not endless.

    What errors quote comes from files and peers: line breaks and escape sequences would reach a user's terminal.
    """
    line = " ".join(text[: 2 * LONGEST].splitlines()) + text[2 * LONGEST :][-LONGEST:]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST // 2]} ... {shown[-LONGEST // 2 :]}"


class PilotError(Exception):
    """Base of all errors that this project raises on purpose.

    ``str(error)`` is one line for the user: what, where, and what to do.
    ``transient`` says whether the same call may succeed later.
    """

    exit_status = 1

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(one_line(message))
        self.transient = transient


class UserError(PilotError):
    """The input is wrong: the one who typed or wrote it can mend it. Exit status 2, nothing was changed."""

    exit_status = 2


class SiteError(UserError):
    """A site file is wrong; its admin can mend it."""


class SubmitError(PilotError):
    """The batch scheduler did not take or did not answer a request."""


class ProtocolError(PilotError):
    """A peer sent what the protocol does not allow; the peer is refused and we go on."""


class CheckpointError(PilotError):
    """A checkpoint could not be written, or does not verify."""


class JournalError(PilotError):
    """The journal cannot be written or read; the coordinator must not go on from it."""


class SolverError(PilotError):
    """A planner gave no readable answer."""


class InvariantError(PilotError):
    """A bug of ours: an invariant of the core does not hold."""
