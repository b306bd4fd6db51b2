"""numpy without threads. OpenBLAS starts a thread per core when it is loaded and, if it may not (a login node's limit
on tasks), sends its process SIGINT, at which a coordinator drains its pool.
"""

from __future__ import annotations

import os
from importlib import import_module

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Environment in which numpy's libraries start no threads."""


def load_numpy() -> None:
    """Import numpy without threads; our environment, which batch jobs may inherit, stays as it was."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)
    try:
        import_module("numpy")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
