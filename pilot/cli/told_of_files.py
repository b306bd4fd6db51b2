"""What ``pilot sites`` and ``pilot checkpoint`` print with ``--json``."""

from __future__ import annotations

from typing import Any

from pilot.io.pool_status import Told


class SiteRow(Told, frozen=True):
    """One site file.

    Parameters
    ----------
    name : of the site
    path : of its file
    error : what is wrong with the file, in one line; empty: it loads, and only then the fields below say something
    scheduler : such as `slurm`
    queue : its partition or queue, and its quality of service
    walltime : of a pilot's job
    max_jobs : how many jobs may be there at once, and whose
    description : in a few words
    retired : since when the machine is no more; empty: it is in use
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
    sites : every site file that is found
    """

    sites: list[SiteRow]


class SiteShown(Told, frozen=True):
    """What `pilot sites show --json` prints.

    Parameters
    ----------
    path : of the site's file
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
    file : as it was named
    mistakes : each in one line; empty: it is valid
    """

    file: str
    mistakes: list[str]


class CheckpointRow(Told, frozen=True):
    """One checkpoint.

    Parameters
    ----------
    path : of the file, of several parts that of the one that names the others
    problem : why it cannot be read; empty: it can, and only then the fields below say something
    generation : of the group that wrote it
    step : steps done
    bytes : of all its files
    files : their names
    written_s : when, in seconds since 1970; null: it cannot be read
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
    checkpoints : of each folder the newest first
    """

    checkpoints: list[CheckpointRow]


class Verified(Told, frozen=True):
    """One checkpoint that was verified.

    Parameters
    ----------
    path : of the file
    problems : what is wrong with it; empty: nothing
    """

    path: str
    problems: list[str]


class VerifiedList(Told, frozen=True):
    """What `pilot checkpoint verify --json` prints.

    Parameters
    ----------
    checkpoints : in the order in which they were read
    """

    checkpoints: list[Verified]


class Dataset(Told, frozen=True):
    """One array in a checkpoint.

    Parameters
    ----------
    name : its path in the state, such as `model/0.weight`
    dtype : torch's or numpy's
    shape : its sizes
    bytes : that it takes
    """

    name: str
    dtype: str
    shape: list[int]
    bytes: int


class CheckpointShown(Told, frozen=True):
    """What `pilot checkpoint show --json` prints.

    Parameters
    ----------
    path : of the file
    generation : of the group that wrote it
    step : steps done
    files : the names of its parts
    bytes : of all its files
    written_s : when, in seconds since 1970
    datasets : its arrays
    aliases : names of an array that has another name already, and that name
    values : its numbers, texts and small lists, by their paths; one that JSON cannot write is a text
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
