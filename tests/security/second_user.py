"""A second real user of this machine (``nobody``), as whom attacks are run. Becoming another user needs root."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess

NAME = "nobody"


class SecondUser:
    """Runs commands as another user, with nothing of the project: the system's shell and Python only."""

    def __init__(self) -> None:
        account = pwd.getpwnam(NAME)
        self.uid, self.gid = account.pw_uid, account.pw_gid

    def sh(self, command: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a shell command; a non-zero status is the caller's to judge."""
        return self._run(["/bin/sh", "-c", command], timeout_s)

    def python(self, program: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a Python program in the system's interpreter, isolated."""
        return self._run([shutil.which("python3", path=os.defpath) or "python3", "-I", "-c", program], timeout_s)

    def _run(self, command: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, user=self.uid, group=self.gid, extra_groups=[], cwd="/", env={"PATH": os.defpath},
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
