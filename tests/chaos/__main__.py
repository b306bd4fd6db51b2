"""``make chaos [SEED=1] [MINUTES=10]``: several trainers on local pilots in a seeded random storm."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from pilot.agent import workdir
from pilot.cli.demo.leftovers import left_behind, unowned
from tests.chaos import network
from tests.chaos.record import Record
from tests.chaos.run import chaos
from tests.pools import Pool

EPOCHS_A_MINUTE = 50


def main() -> int:
    """Exit status 1 if an invariant is violated; the same seed draws the same storm."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes", flush=True)
    if left_out := network.unavailable():
        print(f"left out: cut networks and full disks ({left_out})", flush=True)
    before = unowned()
    with tempfile.TemporaryDirectory(prefix="pilot-chaos-") as folder:
        pool = Pool(Path(folder))
        try:
            epochs = max(1, round(EPOCHS_A_MINUTE * arguments.minutes))
            record = Record()
            seconds = 60 * arguments.minutes
            wrong = chaos(pool, arguments.seed, seconds, epochs, record.say, root=not left_out)
        except Exception as error:
            wrong = [f"{type(error).__name__}: {error}"]
        finally:
            pool.end()
            workdir.sweep()
        wrong += [f"left behind: {name}" for name in left_behind(pool.run_dir, before)]
        if wrong:
            print(f"its logs are kept in {record.keep(pool, arguments.seed, wrong)}")
    for line in wrong:
        print(f"FAILED: {line}")
    print(f"seed {arguments.seed}: {'FAILED' if wrong else 'clean'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
