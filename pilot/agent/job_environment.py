"""A pilot's batch job, host and installed versions, according to its environment."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata

from pilot.core.errors import UserError

_JOB_VARIABLES = ("PILOT_JOB", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
_WALLTIME_VARIABLES = ("PILOT_WALLTIME_END", "SLURM_JOB_END_TIME")


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The batch job of this pilot; "" and 0 if there is none. ``walltime_end_s`` is Unix time.

    ``restart`` distinguishes the runs of a requeued job: Slurm counts them; LSF only shows whether there were any
    (``LSB_RESTART=Y``, LSF 10.1 reference); PBS gives the job no count.
    """

    job: str
    restart: int
    host: str
    walltime_end_s: float | None


def job_environment(environment: Mapping[str, str], walltime_end_s: float | None = None) -> JobEnvironment:
    """Read the variables of the batch system and of ``launchers/``; ``walltime_end_s`` overrides them."""
    job = next((environment[name] for name in _JOB_VARIABLES if environment.get(name)), "")
    host = environment.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0]
    end_s = walltime_end_s if walltime_end_s is not None else _first_time(environment)
    return JobEnvironment(job, _restart(environment), host, end_s)


def _restart(environment: Mapping[str, str]) -> int:
    count = environment.get("SLURM_RESTART_COUNT", "")
    return int(count) if count.isdecimal() else int(environment.get("LSB_RESTART") == "Y")


def _first_time(environment: Mapping[str, str]) -> float | None:
    for name in _WALLTIME_VARIABLES:
        if text := environment.get(name):
            try:
                return float(text)
            except ValueError:
                raise UserError(f"{name} is {text!r}; it must be a Unix time in seconds") from None
    return None


_DISTRIBUTIONS = ("torch", "numpy", "mpi4py", "mpich")
_LONGEST = 64


def versions() -> dict[str, str]:
    """Return the versions installed for the agent's interpreter, by name; missing packages are left out."""
    found = {"Python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        with suppress(ImportError, OSError, ValueError, KeyError):
            found[name] = str(metadata.version(name))[:_LONGEST]
    return found
