"""``make soak [HOURS=2] [SEED=1]``: runs a real pool in a mild storm for hours to find leaks."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.chaos.record import recorded
from tests.soak.report import plot, table
from tests.soak.run import soak
from tests.soak.samples import read
from tests.soak.trends import trends

SAMPLES = "samples.csv"


def main() -> int:
    """Exit status 1 if something grows, an invariant is violated, or something is left behind."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--show", type=Path, help="judge the samples of this folder, also while they are taken")
    arguments = parser.parse_args()
    if arguments.show is not None:
        return _judge([], arguments.show)
    seed, hours = arguments.seed, arguments.hours
    folder = Path("out") / "soak" / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    print(f"seed {seed}, {hours:g} hours; python -m tests.soak --show {folder} shows the state", flush=True)
    return _judge(
        recorded(seed, lambda pool, note, root: soak(pool, seed, 3600 * hours, folder / SAMPLES, note, root=root)),
        folder,
    )


def _judge(violations: list[str], folder: Path) -> int:
    samples = read(folder / SAMPLES)
    found = trends(samples)
    violations = violations + [
        f"{t.who}: {t.quantity} grows by {t.slope:.2f} ± {t.error:.2f} an hour (at most {t.bound:g})"
        for t in found
        if t.verdict == "grows"
    ]
    verdict = "FAILED" if violations else "flat after the first ten minutes, nothing left behind"
    text = "\n".join([table(found), *(f"FAILED: {line}" for line in violations), verdict])
    print(text)
    (folder / "report.txt").write_text(text + "\n")
    if samples:
        plot(samples, folder / "soak.png")
        print(f"plot, table and samples: {folder}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
