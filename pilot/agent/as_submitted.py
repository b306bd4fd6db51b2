"""The script that ``pilot check`` runs for a trainer: it becomes the trainer's own one, with its code as submitted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

VARIABLE = "PILOT_AS_SUBMITTED"


def run(given: str) -> None:
    """Run the script of ``given``: JSON of its path, its copied code with the SHA-256 of that, and its PYTHONPATH."""
    from pilot.agent import submitted_code
    from pilot.train.script import as_main

    script, code, code_sha256, paths = json.loads(given)
    copied = submitted_code.install(code, code_sha256)
    sys.argv[0] = script
    folder = Path(next(iter(copied))).parent if copied else Path(script).resolve().parent
    sys.path[:1] = [str(folder), *map(os.path.abspath, filter(None, paths.split(os.pathsep)))]
    if paths:
        os.environ["PYTHONPATH"] = paths
    namespace = as_main.main_module(script)
    exec(compile(submitted_code.source(copied, script), script, "exec"), namespace)


if __name__ == "__main__":
    run(os.environ.pop(VARIABLE))
