"""What ``pilot sites`` and ``pilot checkpoint`` print with ``--json``."""

from __future__ import annotations

from typing import Any

from pilot.io.pool_status import Told


class SiteRow(Told, frozen=True):
    """One site file.

    Parameters
    ----------
    name : the site's name
    path : the path of its file
    error : what is wrong with the file, in one line; empty: it loads (only then are the fields below set)
    scheduler : such as `slurm`
    queue : its partition or queue, and its QOS
    walltime : the walltime of a pilot's job
    max_jobs : how many jobs may be queued or running at once, and per what
    description : the machine in a few words
    retired : when the machine was shut down; empty: it is in use
    """

    name: str
    path: str
    error: str = ""
    scheduler: str = ""
    queue: str = ""
    walltime: str = ""
    max_jobs: str = ""
    description: str = ""
    retired: str = ""


class SiteList(Told, frozen=True):
    """What `pilot sites --json` prints.

    Parameters
    ----------
    sites : every site file found
    """

    sites: list[SiteRow]


class SiteShown(Told, frozen=True):
    """What `pilot sites show --json` prints.

    Parameters
    ----------
    path : the path of the site's file
    site : its fields, as docs/sites.md describes them
    script : the batch script that would be submitted
    """

    path: str
    site: dict[str, Any]
    script: str


class SiteChecked(Told, frozen=True):
    """What `pilot sites check --json` prints.

    Parameters
    ----------
    file : the file as given on the command line
    mistakes : one line each; empty: the file is valid
    """

    file: str
    mistakes: list[str]


class CheckpointRow(Told, frozen=True):
    """One checkpoint.

    Parameters
    ----------
    path : the path of the file; for a checkpoint in parts, of its index
    problem : why it cannot be read; empty: it can (only then are the fields below set)
    generation : the generation of the group that wrote it
    step : steps done
    bytes : the total size of its files
    files : the names of its files
    written_s : when it was written, in seconds since 1970; null: it cannot be read
    """

    path: str
    problem: str = ""
    generation: int = 0
    step: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    written_s: float | None = None


class CheckpointList(Told, frozen=True):
    """What `pilot checkpoint ls --json` prints.

    Parameters
    ----------
    checkpoints : the checkpoints, newest first within each folder
    """

    checkpoints: list[CheckpointRow]


class Verified(Told, frozen=True):
    """One verified checkpoint.

    Parameters
    ----------
    path : the path of the file
    problems : what is wrong with it; empty: nothing is
    unreadable : whether it cannot be read now, so that it may be intact
    """

    path: str
    problems: list[str]
    unreadable: bool = False


class VerifiedList(Told, frozen=True):
    """What `pilot checkpoint verify --json` prints.

    Parameters
    ----------
    checkpoints : the checkpoints in the order in which they were read
    """

    checkpoints: list[Verified]


class Dataset(Told, frozen=True):
    """One array in a checkpoint.

    Parameters
    ----------
    name : its path in the state, such as `model/0.weight`
    dtype : its torch or numpy data type
    shape : its sizes
    bytes : how many bytes it takes
    """

    name: str
    dtype: str
    shape: list[int]
    bytes: int


class CheckpointShown(Told, frozen=True):
    """What `pilot checkpoint show --json` prints.

    Parameters
    ----------
    path : the path of the file
    generation : the generation of the group that wrote it
    step : steps done
    files : the names of its parts
    bytes : the total size of its files
    written_s : when it was written, in seconds since 1970
    datasets : its arrays
    aliases : additional name of an array → its first name
    values : its numbers, strings and short lists by path; a value that JSON cannot represent is a string
    """

    path: str
    generation: int
    step: int
    files: list[str]
    bytes: int
    written_s: float
    datasets: list[Dataset]
    aliases: dict[str, str]
    values: dict[str, Any]
