"""Training without any change on two ranks, against PyTorch DDP with gloo, both over TCP on the loopback interface.

Both train in the same two processes, in turns, so that a ratio compares what ran in the same minute. A round's time
is the median of its steps; the ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from pilot.io import wire
from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("steady_state_script.py")
STEPS = {"1M": 60, "25M": 8, "100M": 4, "small CNN": 40, "300 small tensors": 60}
ROUNDS = 7
_WARM_UP_ROUNDS = 1
_WARM_UP_STEPS = 1


def measure(subject: str, rounds: int) -> dict[str, Any]:
    """Median step times (ms) and their ratio for one subject."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = ["--subject", subject, "--steps", str(STEPS[subject]), "--rounds", str(rounds + _WARM_UP_ROUNDS)]
        with plane(folder, SCRIPT, *arguments, "--folder", name) as cluster:
            nodes = cluster.start(2)
            cluster.form(nodes)
            cluster.wait(lambda: bool(nodes[0].heard(wire.WorkerFinished)), "the end", deadline_s=600)
            cpu_s = [sum(node.rank_process(1).cpu_times()[:2]) for node in nodes]
            cluster.stop()
        measured = json.loads((folder / "rank0.json").read_text())[_WARM_UP_ROUNDS:]
    return _summary(measured) | {"rank_process_cpu_s": cpu_s}


def _summary(rounds: list[dict[str, list[float]]]) -> dict[str, Any]:
    def medians(key: str) -> list[float]:
        return [median(one[key][_WARM_UP_STEPS:]) for one in rounds]

    ours, theirs = medians("pilot_s"), medians("ddp_s")
    ratios = [t / o for o, t in zip(ours, theirs, strict=True)]
    return {
        "pilot_ms": 1e3 * median(ours),
        "of which in session.step_ms": 1e3 * median(medians("step_s")),
        "ddp_gloo_ms": 1e3 * median(theirs),
        "speed_relative_to_ddp": median(ratios),
        "ratios": ratios,
    }


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--subjects", nargs="*", default=list(STEPS), choices=list(STEPS))
    arguments = parser.parse_args()
    results = {}
    for subject in arguments.subjects:
        results[subject] = result = measure(subject, arguments.rounds)
        print(
            f"{subject:>18}: pilot {result['pilot_ms']:7.1f} ms, DDP {result['ddp_gloo_ms']:7.1f} ms,"
            f" {result['speed_relative_to_ddp']:.2f} × its speed"
        )
    results["cores"] = psutil.cpu_count()
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
