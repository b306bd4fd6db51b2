"""Runs a batch scheduler's commands."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence

from pilot.core.errors import SubmitError
from pilot.host.scheduler_environment import for_commands

Run = Callable[[Sequence[str], float], str]
"""Runs a scheduler's command with a time limit in seconds and returns its output: :func:`run_command`, or a
recording."""


class CommandRefused(SubmitError):
    """A scheduler's command failed, with one line per error in ``stderr``."""

    def __init__(self, command: str, stderr: str, status: int = 1, output: str = "") -> None:
        self.stderr, self.output = stderr.strip(), output
        reason = self.stderr.rpartition("\n")[2] or f"exit {status}"
        super().__init__(f"{command} failed: {reason}", transient=True)


def run_command(command: Sequence[str], limit_s: float) -> str:
    """Return the output of ``command``; after ``limit_s`` it is killed with all its children.

    Raises
    ------
    CommandRefused
        It failed.
    SubmitError
        It does not exist, or took too long.
    """
    name = command[0]
    if shutil.which(name) is None:
        raise SubmitError(f"{name} is not on this machine's PATH; run this where the scheduler's commands are")
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=for_commands(os.environ),
        start_new_session=True,
    ) as process:
        try:
            output, stderr = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise SubmitError(f"{name} did not answer within {limit_s:g} s", transient=True) from None
    if process.returncode:
        raise CommandRefused(name, stderr, process.returncode, output)
    return output
