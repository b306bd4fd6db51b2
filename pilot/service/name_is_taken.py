"""What a user can do if the name of a new trainer is taken."""

from __future__ import annotations

from pilot.core.commands import Outcome

_ENDED = {
    Outcome.FINISHED: "has finished",
    Outcome.FAILED: "has failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.STOPPED: "was stopped",
}


def name_is_taken(name: str, outcome: Outcome | None) -> str:
    """What the user can do if a new trainer has the name of an existing one with this outcome (None: not ended)."""
    taken = f"a trainer named {name} already exists"
    if outcome is None:
        return f"{taken}, and it has not ended; choose another --name, or pilot cancel {name} first"
    resume = "" if outcome is Outcome.FINISHED else f"pilot resume {name} continues it, "
    return (
        f"{taken} and {_ENDED[outcome]}: {resume}--from {name} with another --name starts from its last "
        "checkpoint, --replace deletes it with its files"
    )
