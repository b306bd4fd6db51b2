"""How long ``pilot logs`` takes on hundreds of megabytes of logs: all of them merged, and only their last lines."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from pilot.rundir.log_marks import times_of

NODES = 4
LINE = b"step 123456 loss 0.123456 " + b"x" * 73 + b"\n"
LINES_A_MARK = 2000
WAYS = {"help_s": ["--help"], "all_s": ["--all"], "rank_0_s": [], "tail_s": ["--all", "-n", "100"]}


def write_logs(folder: Path, megabytes: int) -> None:
    """This many megabytes in all, by processes that take turns as rank 0."""
    folder.mkdir(parents=True)
    chunk = LINE * LINES_A_MARK
    for node in range(NODES):
        log = folder / f"n{node}.log"
        with log.open("wb") as file, times_of(log).open("w") as times:
            for mark in range((megabytes << 20) // NODES // len(chunk)):
                times.write(f"{mark * 0.5 + 1000} {file.tell()} {(node + mark // 100) % NODES}\n")
                file.write(chunk)


def seconds(run_dir: Path, *options: str) -> tuple[float, int]:
    """Wall time of ``pilot logs`` with ``options``, and the bytes printed."""
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "pilot", "logs", "t", "--run-dir", str(run_dir), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = sum(map(len, iter(lambda: process.stdout.read(1 << 20), b"")))  # type: ignore[union-attr]  # asserted above
    assert process.returncode == 0
    return time.perf_counter() - began_s, printed


def main() -> None:
    """Medians of three runs, after one that is not counted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.logs", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result: dict[str, float] = {"megabytes": arguments.megabytes}
    with tempfile.TemporaryDirectory() as folder:
        write_logs(Path(folder, "trainers", "t", "logs"), arguments.megabytes)
        for name, options in WAYS.items():
            runs = [seconds(Path(folder), *options) for _ in range(4)][1:]
            result[name] = median(took_s for took_s, _ in runs)
            print(f"{name[:-2]}: {result[name]:.2f} s, {runs[0][1] / 1e6:.0f} MB printed")
    if arguments.json:
        arguments.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
