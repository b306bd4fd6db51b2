"""Which trainer owns a folder: the folder contains the trainer's uid, and whoever writes checkpoints checks it.

An agent may outlive its pool (if a drain was cut short), and a name may be used again. So a new trainer of the same
name gets a folder of its own, and nobody writes into a folder that is another trainer's or has been removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pilot.core.errors import CheckpointError, Unreadable
from pilot.core.ids import TrainerId, TrainerUid
from pilot.io.files import publish

_MARK = ".trainer_uid"
_DIGITS = 8


def name(trainer: TrainerId, uid: TrainerUid) -> str:
    """``<trainer>-<first digits of its uid>``; only the trainer's name if it has no uid."""
    return f"{trainer}-{uid[:_DIGITS]}" if uid else trainer


def mark(folder: Path, uid: TrainerUid) -> None:
    """Record that trainer ``uid`` owns ``folder``."""
    publish(folder / _MARK, f"{uid}\n".encode())


def check(checkpoints: Path, uid: str) -> None:
    """:class:`CheckpointError` unless ``checkpoints`` is in the folder of trainer ``uid`` ("": of no trainer).

    It may be a symbolic link, or on another disk.
    """
    owner = owner_of(checkpoints.parent)
    if owner != uid:
        whose = f"used by another trainer ({owner})" if owner else "no longer used by any trainer"
        raise CheckpointError(f"refusing to write to {checkpoints}: its folder is {whose}")


def owner_of(folder: Path) -> str:
    """The uid of the trainer that owns ``folder``; "" if nobody does, or if it does not exist."""
    try:
        return (folder / _MARK).read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"cannot read whose folder {folder} is: {error}", transient=True) from None


def start_of(folder: Path) -> Path:
    """The path of the checkpoint that the trainer of ``folder`` starts from, if it was submitted with one."""
    return folder / "start" / "index.h5"


def is_started_from(folder: Path) -> bool:
    """Whether its trainer starts from a checkpoint; :class:`Unreadable` if that cannot be known now."""
    try:
        return start_of(folder).parent in folder.iterdir()
    except OSError as error:
        raise Unreadable(f"cannot read the folder {folder}: {error.strerror}") from None


def start_from(folder: Path, files: Sequence[str]) -> None:
    """Let the trainer of ``folder`` start from a checkpoint: the file to open and its parts. Without ``files``, do
    nothing.

    The files are hard-linked, which is safe because checkpoints never change, or copied if that is not possible. It
    does not matter if their owner renames or removes them later.
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
    """Whether ``folder`` is the folder of a trainer without a uid, and not a link."""
    return folder.is_dir() and not folder.is_symlink() and not owner_of(folder)
