"""What the environment of a batch job says of it: the agent reads it, ``launchers/`` writes part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ID_VARIABLES = ("PILOT_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")


@dataclass(frozen=True, slots=True)
class Job:
    """The job that a process runs in.

    ``job`` is the scheduler's id ("" outside of any job), ``restart`` how often it was requeued, ``end_s`` when its
    wall time ends (Unix time; None: not known).
    """

    job: str = ""
    restart: int = 0
    end_s: float | None = None


def job_of(environ: Mapping[str, str]) -> Job:
    """The job that a process with this environment runs in. What is not a number is taken as not said."""
    job = next((environ[name] for name in _ID_VARIABLES if environ.get(name)), "")
    restart = _number(environ.get("SLURM_RESTART_COUNT")) or (1 if environ.get("LSB_RESTART") == "Y" else 0)
    end_s = _number(environ.get("PILOT_JOB_END_S")) or _number(environ.get("SLURM_JOB_END_TIME"))
    return Job(job, restart, float(end_s) if end_s else None)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
