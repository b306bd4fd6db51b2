"""Run every benchmark in turn, each in its own process, and collect their JSON in one file."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

BENCHMARKS = [
    "coordinator",
    "planners",
    "mixed_planners",
    "horizon",
    "curves",
    "rescale",
    "replicas",
    "ddp",
    "peers",
    "loader",
    "steady_state",
    "shares",
    "seldom",
    "alone",
    "node",
    "staging",
    "guards",
    "checkpoint",
    "preemption",
    "transport",
    "restart",
    "scale",
    "first_step",
    "logs",
]


def main() -> int:
    """Exit status 1 if one of them failed; the results of the others are kept."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BENCHMARKS, []], help="which ones (default: all)")
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"), help="where the results go")
    arguments = parser.parse_args()
    results = {name: run(name) for name in arguments.names or BENCHMARKS}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    print(f"results: {arguments.json}")
    return 1 if None in results.values() else 0


def run(name: str) -> object | None:
    """The JSON of one benchmark; None if it failed (its output says why)."""
    print(f"== {name}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json", str(output)], check=False)
        if done.returncode != 0 or not output.exists():
            print(f"{name} failed with exit status {done.returncode}", file=sys.stderr)
            return None
        result: object = json.loads(output.read_text())
        return result


if __name__ == "__main__":
    sys.exit(main())
