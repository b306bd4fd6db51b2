"""The directory of a trainer's checkpoints, held while it is used (see :mod:`pilot.rundir.trainer_folder`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from pilot.core.errors import CheckpointError, Unreadable
from pilot.host.private_folder import UnsafeFolder
from pilot.rundir import trainer_folder


def held(directory: Path, uid: str, *, make: bool = False) -> AbstractContextManager[Path]:
    """Hold ``directory`` of trainer ``uid`` ("": of none), created first with ``make``; yields where it is until then.

    Raises
    ------
    FileNotFoundError : it does not exist
    CheckpointError : it is not ours alone or another trainer's; :class:`Unreadable` if it cannot be opened now
    """
    return _explained(trainer_folder.held(directory, uid, make=make))


def held_here(directory: Path) -> AbstractContextManager[Path]:
    """Hold ``directory`` of whichever trainer has that folder in a run directory; raises like :func:`held`."""
    return _explained(trainer_folder.held_here(directory))


@contextmanager
def _explained(holding: AbstractContextManager[Path]) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            place = stack.enter_context(holding)
        except FileNotFoundError:
            raise
        except OSError as error:
            kind = CheckpointError if isinstance(error, UnsafeFolder) else Unreadable
            raise kind(f"cannot use {error.filename}: {error.strerror}") from None
        yield place
