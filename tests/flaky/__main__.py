"""``make flaky [TIMES=10]``: the tests with real pools, repeated, also beside a busy process on each core."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.flaky.outcomes import Outcome, read

REAL_POOLS = [
    "tests/e2e",
    "tests/chaos",
    "tests/slurm",
    *(
        f"tests/integration/test_{name}.py"
        for name in ("agent", "agent_groups", "forks", "loop_files", "ranks", "server", "workers")
    ),
    *(f"tests/integration/test_live_{name}.py" for name in ("jobs", "objective", "pool", "restart")),
]
ALONE, BUSY = "alone", "busy"


def main() -> int:
    """Exit status 1 if a test failed at least once."""
    parser = argparse.ArgumentParser(prog="python -m tests.flaky", description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("tests", nargs="*", default=REAL_POOLS, help="which ones (default: all with real pools)")
    arguments = parser.parse_args()
    folder = Path("out") / "flaky" / time.strftime("%Y%m%d-%H%M%S")
    for number in range(arguments.times):
        _pytest(arguments.tests, folder / f"{ALONE}.jsonl")
        with _busy():
            _pytest(arguments.tests, folder / f"{BUSY}.jsonl")
        print(f"=== {number + 1} of {arguments.times}\n{summary(folder)}", flush=True)
    failed = [outcome for how in (ALONE, BUSY) for outcome in read(folder / f"{how}.jsonl") if outcome.failure]
    (folder / "failures.txt").write_text("\n".join(f"--- {outcome.test}\n{outcome.failure}" for outcome in failed))
    print(f"how they failed: {folder / 'failures.txt'}")
    return 1 if failed else 0


def summary(folder: Path) -> str:
    """A line for each test that failed, and a summary of the rest."""
    runs = {how: read(folder / f"{how}.jsonl") for how in (ALONE, BUSY)}
    failed = {how: Counter(o.test for o in found if o.failure) for how, found in runs.items()}
    times = {how: Counter(o.test for o in found if not o.failure) + failed[how] for how, found in runs.items()}
    names = sorted(set(failed[ALONE]) | set(failed[BUSY]))
    counts = {name: [f"{failed[how][name]} of {times[how][name]} {how}" for how in runs] for name in names}
    lines = [f"failed {', '.join(count)}: {name}" for name, count in counts.items()]
    always = set(times[ALONE] | times[BUSY]) - set(names)
    slowest = max((o for found in runs.values() for o in found), key=lambda o: o.took_s, default=Outcome("none", 0))
    return "\n".join([*lines, f"{len(always)} tests never failed; slowest: {slowest.took_s:.0f} s, {slowest.test}"])


def _pytest(tests: list[str], outcomes: Path) -> None:
    recorded = ["-p", "tests.flaky.outcomes", "--outcomes", str(outcomes)]
    subprocess.run([sys.executable, "-m", "pytest", "-q", *recorded, *tests], check=False)


@contextmanager
def _busy() -> Iterator[None]:
    """A busy process on each core."""
    cores = range(os.cpu_count() or 1)
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in cores]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
