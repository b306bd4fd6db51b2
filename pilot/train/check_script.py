"""``python -m pilot.train.check_script SCRIPT [ARGS]``: one run of ``pilot check``, as ``python SCRIPT [ARGS]``."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from pilot.core.errors import REFUSAL
from pilot.train.data.rng import seed_all
from pilot.train.ranks import by_design
from pilot.train.ranks.check_group import Run
from pilot.train.script import refusal

NO_SESSION = "the script ended without a step of a pilot.train session: nothing to check"
SEED = 0
"""As on the nodes of a trainer, the generators are seeded identically before the script starts."""


def main() -> None:
    """Ends in the session's first step; otherwise reports why it did not."""
    script, *arguments = sys.argv[1:]
    Run.of(os.environ).keep_link()
    by_design.take_out()
    refusal.show_in_one_line()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    seed_all(SEED)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            raise
    print(f"{REFUSAL}{NO_SESSION}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
