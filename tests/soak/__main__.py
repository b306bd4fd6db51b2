"""``make soak [HOURS=2] [SEED=1]``: hours of a real pool in a mild storm, and whether anything grows meanwhile."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from pilot.agent import workdir
from pilot.cli.demo.leftovers import left_behind, unowned
from tests.chaos import network
from tests.chaos.record import Record
from tests.pools import Pool
from tests.soak.report import plot, table
from tests.soak.run import Soak, soak
from tests.soak.samples import read
from tests.soak.trends import trends


def main() -> int:
    """Exit status 1 if something grows, an invariant is violated, or something is left behind."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--show", type=Path, help="judge the samples of this folder, also while they are taken")
    arguments = parser.parse_args()
    if arguments.show is not None:
        return _judge(Soak(read(arguments.show / "samples.csv")), arguments.show)
    folder = Path("out") / "soak" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    print(
        f"seed {arguments.seed}, {arguments.hours:g} hours; python -m tests.soak --show {folder} tells how it stands",
        flush=True,
    )
    return _judge(_run(arguments.seed, 3600 * arguments.hours, folder), folder)


def _run(seed: int, seconds: float, folder: Path) -> Soak:
    if left_out := network.unavailable():
        print(f"left out: cut networks and full disks ({left_out})", flush=True)
    before, record = unowned(), Record()
    with tempfile.TemporaryDirectory(prefix="pilot-soak-") as place:
        pool = Pool(Path(place))
        try:
            made = soak(pool, seed, seconds, folder, record.say, root=not left_out)
        except Exception as error:
            samples = folder / "samples.csv"
            made = Soak(read(samples) if samples.exists() else [], [f"{type(error).__name__}: {error}"])
        finally:
            pool.end()
            workdir.sweep()
        made.wrong += [f"left behind: {name}" for name in left_behind(pool.run_dir, before)]
        if made.wrong:
            print(f"its logs are kept in {record.keep(pool, seed, made.wrong)}")
    return made


def _judge(made: Soak, folder: Path) -> int:
    found = trends(made.samples)
    wrong = made.wrong + [
        f"{t.who}: {t.quantity} grows by {t.slope:.2f} ± {t.error:.2f} an hour (at most {t.bound:g})"
        for t in found
        if t.verdict == "grows"
    ]
    verdict = "FAILED" if wrong else "flat after the first ten minutes, nothing left behind"
    text = "\n".join([table(found), *(f"FAILED: {line}" for line in wrong), verdict])
    print(text)
    (folder / "report.txt").write_text(text + "\n")
    if made.samples:
        plot(made.samples, folder / "soak.png")
        print(f"plot, table and samples: {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
