"""What a killed node costs a model that is divided over replicas of two nodes, in a real pool.

Two replicas train, and a fifth node is idle. A node is killed with everything on it, which ends its replica; a new one
is made of its other node and the idle one. *Stall*: the longest gap between two steps of the other replica until the
new one trains, minus its median gap. *Join*: the same for the step in which the new one begins. *Mend*: from the kill
to the end of the new replica's first step.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from tests.pools import Pool

SCRIPT = Path(__file__).with_name("replicas_script.py")
SUBJECTS = {"1M": (4, 512), "25M": (6, 2048)}
"""Name → layers and width of a model with about layers · width² parameters."""
OPTIONS = ("--between-nodes", "gloo", "--nodes-per-replica", "2", "--max-nodes", "4")
Steps = dict[str, list[float]]
"""When the steps of each training process ended."""


def lose_a_node(subject: str) -> dict[str, float]:
    """Kill one of four nodes; seconds by name."""
    with tempfile.TemporaryDirectory() as name:
        pool = Pool(Path(name))
        try:
            pool.up()
            agents = [pool.agent() for _ in range(4)]
            script = shutil.copy(SCRIPT, pool.folder)  # apart from scripts for which nothing can be preloaded
            trainer = pool.submit(script, *map(str, SUBJECTS[subject]), name, options=(*pool.gains(), *OPTIONS))
            pool.until_step(trainer, 1, nodes=4)
            agents.append(pool.agent())
            for number in range(len(agents)):  # as on nodes that have been there for a while
                log = pool.folder / f"agent{number}.log"
                pool.until("it has imported torch", lambda _, log=log: "preloaded:" in log.read_text())
            pool.trains(trainer, nodes=4)
            before, killed_s = _steps(pool.folder), time.monotonic()
            pool.kill_tree(agents[1])
            pool.until("a new replica trains", lambda _: len(_steps(pool.folder)) == len(before) + 2)
            pool.trains(trainer, nodes=4)
            return _found(_steps(pool.folder), before, killed_s)
        finally:
            pool.end()


def _steps(folder: Path) -> Steps:
    return {path.name: [float(one) for one in path.read_text().splitlines()] for path in folder.glob("steps.*")}


def _found(steps: Steps, before: Steps, killed_s: float) -> dict[str, float]:
    mended_s = max(times[0] for name, times in steps.items() if name not in before)
    survivor = max((steps[name] for name in before), key=max)
    gaps = [(end, end - begin) for begin, end in pairwise(survivor)]
    usual_s = median(gap for end, gap in gaps if end < killed_s)
    joined_s = min((end for end, _ in gaps), key=lambda end: abs(end - mended_s))
    return {
        "stall_s": max(gap for end, gap in gaps if killed_s < end < joined_s) - usual_s,
        "join_s": max(gap for end, gap in gaps if end == joined_s) - usual_s,
        "mend_s": mended_s - killed_s,
        "step_s": usual_s,
    }


def main() -> None:
    """Print each round and the medians, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--subjects", nargs="*", default=["1M", "25M"], choices=list(SUBJECTS))
    arguments = parser.parse_args()
    results = {}
    for subject in arguments.subjects:
        rounds = [lose_a_node(subject) for _ in range(arguments.rounds)]
        medians = {name: median(one[name] for one in rounds) for name in rounds[0]}
        results[subject] = {"median": medians, "rounds": rounds}
        print(f"{subject}:", ", ".join(f"{name} {value:.3f}" for name, value in medians.items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
