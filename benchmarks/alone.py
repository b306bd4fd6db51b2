"""A session alone against a plain loop, in turns: what the guards and the loader cost those who train on one
node. ``--device cuda`` trains on a GPU.

A round's time is that of its steps, the batches included; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.turns import Turns
from tests.integration.live_pool import until

STEPS = {"1M": 60, "small CNN": 40, "batch norms": 30, "300 small tensors": 60}
ROUNDS = 7
DEADLINE_S = 300.0
_WARM_UP_ROUNDS = 2


def measure(subject: str, device: str, rounds: int) -> dict[str, Any]:
    """Median ms per step of both, and their ratio."""
    blocks = rounds + _WARM_UP_ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        turns = {way: _start(way, Path(folder, way), subject, device, blocks) for way in ("session", "plain")}
        found = [{way: turn.run()[0] for way, turn in turns.items()} for _ in range(blocks)][_WARM_UP_ROUNDS:]
    ratios = [one["session"] / one["plain"] for one in found]
    medians = {f"{way}_ms": median(one[way] for one in found) for way in turns}
    return {**medians, "time_relative_to_plain": median(ratios), "ratios": ratios}


def _start(way: str, folder: Path, subject: str, device: str, blocks: int) -> Turns:
    folder.mkdir()
    options = {"way": way, "folder": folder, "subject": subject, "device": device, "steps": STEPS[subject]}
    given = [word for name, value in (options | {"rounds": blocks}).items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.alone_script", *given])

    def wait(done: Any) -> None:
        until(lambda: done() or process.poll() not in (None, 0), DEADLINE_S)
        assert done(), f"{way} of {subject} failed"

    return Turns(folder, 1, wait)


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--subjects", nargs="*", default=list(STEPS), choices=list(STEPS))
    arguments = parser.parse_args()
    results = {}
    for subject in arguments.subjects:
        results[subject] = found = measure(subject, arguments.device, arguments.rounds)
        print(
            f"{subject:>18}: alone {found['session_ms']:.2f} ms, a plain loop {found['plain_ms']:.2f} ms:"
            f" {found['time_relative_to_plain']:.2f} × its time",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
