"""Whose a trainer's folder is: it carries the trainer's uid, and who writes checkpoints into it shows theirs.

An agent may outlive its pool (a drain that was cut short), and a folder its name: a new trainer of the same name has a
folder of its own, and whoever comes to a folder of another trainer, or to one that was taken away, writes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pilot.core.errors import CheckpointError
from pilot.core.ids import TrainerId, TrainerUid
from pilot.io.files import publish

_MARK = ".trainer_uid"
_DIGITS = 8


def name(trainer: TrainerId, uid: TrainerUid) -> str:
    """``<trainer>-<first digits of its uid>``; the trainer's name alone where it has no uid."""
    return f"{trainer}-{uid[:_DIGITS]}" if uid else trainer


def mark(folder: Path, uid: TrainerUid) -> None:
    """Write whose ``folder`` is."""
    publish(folder / _MARK, f"{uid}\n".encode())


def check(checkpoints: Path, uid: str) -> None:
    """:class:`CheckpointError` where ``checkpoints`` is not in the folder of trainer ``uid`` (""; in nobody's).

    It may itself be a link, or another disk.
    """
    owner = owner_of(checkpoints.parent)
    if owner != uid:
        whose = f"used by another trainer ({owner})" if owner else "no longer used by any trainer"
        raise CheckpointError(f"refusing to write to {checkpoints}: its folder is {whose}")


def owner_of(folder: Path) -> str:
    """The uid of the trainer whose folder it is; "" where it is nobody's, or not there."""
    try:
        return (folder / _MARK).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read whose folder {folder} is: {error}", transient=True) from None


def start_of(folder: Path) -> Path:
    """The checkpoint from which the trainer of ``folder`` was submitted to start, if it was."""
    return folder / "start" / "index.h5"


def start_from(folder: Path, files: Sequence[str]) -> None:
    """Make a checkpoint, the file to be opened and its parts, the start of the trainer of ``folder``; of none, nothing.

    Checkpoints never change, so links to them do; where that cannot be they are copied. What its own trainer, or
    whoever has it, does with the names afterwards does not matter.
    """
    for number, file in enumerate(files):
        start = start_of(folder)
        start.parent.mkdir(mode=0o700, exist_ok=True)
        target = start if number == 0 else start.with_name(Path(file).name)
        try:
            target.hardlink_to(file)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(file, target)


def is_nameless(folder: Path) -> bool:
    """Whether ``folder`` is that of a trainer without a uid, and no link to another one."""
    return folder.is_dir() and not folder.is_symlink() and not owner_of(folder)
