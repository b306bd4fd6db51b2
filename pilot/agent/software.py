"""Which versions of what training depends on this node has, without importing any of it."""

from __future__ import annotations

import platform
from contextlib import suppress
from importlib import metadata

_DISTRIBUTIONS = ("torch", "numpy", "mpi4py", "mpich")
_LONGEST = 64


def versions() -> dict[str, str]:
    """By name, as installed for the agent's interpreter; what is not installed is left out."""
    found = {"Python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        with suppress(ImportError, OSError, ValueError, KeyError):
            found[name] = str(metadata.version(name))[:_LONGEST]
    return found
