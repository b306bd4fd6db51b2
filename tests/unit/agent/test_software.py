"""An agent knows the versions of what is installed without importing it."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata

import pytest

from pilot.agent import job_environment


def test_it_is_what_is_installed() -> None:
    found = job_environment.versions()
    assert found["Python"] == platform.python_version()
    assert found["torch"] == metadata.version("torch")


def test_what_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_environment, "_DISTRIBUTIONS", ("no-such-thing", "numpy"))
    assert list(job_environment.versions()) == ["Python", "numpy"]


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys; from pilot.agent import job_environment; job_environment.versions();"
        "print(*{'torch', 'numpy', 'mpi4py'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
