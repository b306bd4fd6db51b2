"""Gives every job that the pool submits its own token, in its own connection file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pilot.provisioning.scheduler_thread import Provider


class JobTokens(Protocol):
    """Offered by the coordinator; see :class:`pilot.service.admission.Admission`."""

    def issue(self) -> Path:
        """Create a connection file for another job."""

    def bind(self, path: Path, job: str) -> None:
        """The file was given to ``job``."""


@dataclass(frozen=True, slots=True)
class TokenProvider:
    """Submits through ``provider``. The command finds its connection file in ``PILOT_CONNECTION``.

    The file of a submission that seems to have failed is kept: schedulers sometimes accept a job and then do not
    answer.
    """

    provider: Provider
    tokens: JobTokens

    def submit(self, command: str, job_name: str, walltime_s: float | None = None) -> str:
        """See :class:`pilot.provisioning.keeper.Provider`."""
        file = self.tokens.issue()
        job = self.provider.submit(f"env PILOT_CONNECTION={shlex.quote(str(file))} {command}", job_name, walltime_s)
        self.tokens.bind(file, job)
        return job
