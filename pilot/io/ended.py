"""How a coordinator ended: the last file that it writes before it gives up its run directory."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pilot.core.errors import UserError
from pilot.io.files import publish


class Ended(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What went wrong or is left at the end; all fields are empty after a clean shutdown.

    Parameters
    ----------
    failure : the error that ended it
    jobs_left : ids of our jobs that still exist
    jobs_unknown : why the scheduler could not say whether jobs are left
    nodes_left : nodes that had not left when a second signal ended the drain
    unsaved : trainers whose state could not be written when they paused
    """

    failure: str = ""
    jobs_left: tuple[str, ...] = ()
    jobs_unknown: str = ""
    nodes_left: tuple[str, ...] = ()
    unsaved: tuple[str, ...] = ()

    def problems(self) -> list[str]:
        """What went wrong or is left, a clause each."""
        said = [
            (self.failure, f"it failed: {self.failure}"),
            (self.jobs_left, f"these jobs still exist; cancel them by hand: {', '.join(self.jobs_left)}"),
            (self.jobs_unknown, f"cannot tell whether jobs of this pool are left: {self.jobs_unknown}"),
            (self.nodes_left, f"it was stopped before these nodes had left: {', '.join(self.nodes_left)}"),
            (self.unsaved, f"the state of these trainers could not be written: {', '.join(self.unsaved)}"),
        ]
        return [text for found, text in said if found]


def write(path: Path, ended: Ended) -> None:
    """Publish the file with mode 0600."""
    publish(path, msgspec.json.encode(ended) + b"\n")


def load(path: Path) -> Ended | None:
    """Read the file; None if there is none: the coordinator is still running, or it was killed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ended)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"cannot read how the coordinator ended from {path}: {error}") from None
