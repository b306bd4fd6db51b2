"""Removes obsolete files after a checkpoint was published: older checkpoints, and parts that belong to none."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pilot.checkpoint import names, reader
from pilot.checkpoint.names import Age
from pilot.checkpoint.openfile import Damaged, OpenFile
from pilot.core.errors import CheckpointError, Unreadable, UserError
from pilot.host.private_folder import shown

_intact: dict[Path, Age] = {}
"""The newest checkpoint of each folder that this process has read completely and found intact."""


def was_read(directory: Path, age: Age) -> None:
    """Record that a checkpoint in ``directory`` was read completely and is intact."""
    _intact[shown(directory)] = age


@dataclass(frozen=True, slots=True)
class Retention:
    """The checkpoints to keep: the last ``kept``, and the newest up to ``agreed_step``, because the ranks do not know
    yet that later ones hold the same state on all of them. Those of generations up to ``given_up`` are the user's to
    remove.
    """

    kept: int
    agreed_step: int | None = None
    given_up: int = 0

    def __post_init__(self) -> None:
        if self.kept < 1:
            raise UserError(f"at least 1 checkpoint must be kept, got {self.kept}")

    def tidy(self, directory: Path, newest: Age) -> None:
        """Remove checkpoints older than ``newest``, which was just published, that need not be kept.

        An index is removed before its parts, so a listed checkpoint never lacks a part. One of another generation is
        removed only if it can be read now, and if a newer one has been read completely: when it was loaded, or else
        ``newest`` is read back from the disk.

        Raises
        ------
        CheckpointError : ``newest`` cannot be read back
        """
        oldest = Age(self.given_up + 1, 0)
        older = [entry for entry in names.checkpoints(directory) if oldest <= entry.age < newest]
        agreed = [newest, *(entry.age for entry in older)] if self.agreed_step is not None else []
        spared = next((age for age in agreed if age.step <= (self.agreed_step or 0)), None)
        obsolete = [entry for entry in older[self.kept - 1 :] if entry.age != spared]
        known = _intact.get(shown(directory), Age(0, 0))
        if any(known <= entry.age < Age(newest.generation, 0) for entry in obsolete):
            _read_back(directory / names.checkpoint_name(*newest))
            was_read(directory, newest)
        for entry in obsolete:
            if entry.age.generation == newest.generation or _is_readable(entry.path):
                _remove(entry.path)
        living = {entry.age for entry in names.checkpoints(directory)}
        for one in [*names.parts(directory), *names.next_steps(directory)]:
            if oldest <= one.age < newest and one.age not in living:
                _remove(one.path)


def _read_back(path: Path) -> None:
    try:
        problems = reader.verify(path)
    except Unreadable as error:
        problems = [str(error)]
    if problems:
        raise CheckpointError(f"it was written, but cannot be read back: {problems[0]}; earlier checkpoints are kept")


def _is_readable(path: Path) -> bool:
    try:
        with OpenFile(path) as file:
            file.structure()
    except Unreadable:
        return False
    except Damaged:
        pass
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):  # a later checkpoint tries again; publishing must not fail because of old files
        path.unlink()
