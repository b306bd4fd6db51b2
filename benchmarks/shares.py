"""Shares of a global batch on unequal nodes: four ranks under CPU quotas, with shares that follow their times and with
equal ones ("lockstep"). Both groups are up at once and take turns (:mod:`benchmarks.turns`).

* Equal quotas: the rate with shares, relative to equal ones.
* One rank gets half its quota in the middle of a block, and the whole one again: after how many steps its share is
  within a tenth of its new level.
* With the slow rank: the rates, relative to 3.5 equal ranks, whose step takes c + d · samples: d is fitted to the own
  times (without waits) of ranks with the whole quota, c is what the step of four equal ranks takes besides. ("By own
  times alone": relative to these, as if the exchange and the ranks' jitter took no time.)

Each sample that a rank got is counted: every epoch must have each once. ``--picture`` draws the shares of the block in
which the quota changes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from benchmarks.quotas import Quota, quotas
from benchmarks.shares_script import STEPS_PER_EPOCH
from benchmarks.turns import Turns
from pilot.agent import fork_server
from pilot.history.figures import drawn
from tests.integration.plane import plane

SCRIPT = Path(__file__).with_name("shares_script.py")
RANKS, SLOW = 4, 3
EQUIVALENT = RANKS - 0.5
"""Equal ranks that have the cores of three and a half."""
WARM_UP, ROUND, CHANGES, SETTLE = 16, 24, 120, 24
"""Steps of each block."""
SLOW_AT, FAST_AT = 30, 75
_WARM_UP_STEPS = 3
_DEADLINE_S = 600.0
_LOOK_S = 0.002
_TOLERANCE = 0.1

Step = dict[str, Any]
Block = list[list[Step]]
"""The steps of each rank."""


class Way:
    """A group of ranks, one per node; ``blocks``: those that it has run."""

    def __init__(self, turns: Turns, folder: Path) -> None:
        self._turns, self._folder = turns, folder
        self.blocks: list[Block] = []

    def run(self) -> Block:
        """Run its next block."""
        self.blocks.append(self._turns.run())
        return self.blocks[-1]

    def step(self) -> int:
        """Return the number of the newest step."""
        try:
            return int((self._folder / "step").read_text() or 0)
        except FileNotFoundError:
            return 0


@contextmanager
def way(shares: str, batch: int, blocks: list[int], limits: list[Quota], each: Callable[[], None]) -> Iterator[Way]:
    """A group whose nodes have ``limits``; ``each`` is called while a block runs."""
    with tempfile.TemporaryDirectory() as name:
        arguments = ["--shares", shares, "--batch", str(batch), "--folder", name, "--blocks", *map(str, blocks)]
        with plane(Path(name), SCRIPT, *arguments) as cluster:
            nodes = cluster.start(RANKS)
            generation = cluster.form(nodes)
            for node, limit in zip(nodes, limits, strict=True):
                for process in (psutil.Process(node.process.pid), node.rank_process(generation)):
                    for one in (process, *process.children(recursive=True)):
                        limit.add(one.pid)

            def wait(done: Callable[[], bool]) -> None:
                def looked() -> bool:
                    each()
                    return done()

                cluster.wait(looked, "a block of steps", _DEADLINE_S)

            yield Way(Turns(Path(name), RANKS, wait), Path(name))
            cluster.wait_finished()
            cluster.stop()


def step_s(block: Block) -> list[float]:
    """Return the time of each step."""
    return [step["end_s"] - step["begin_s"] for step in block[0]][_WARM_UP_STEPS:]


def followed(block: Block, at_s: float, until_s: float) -> int:
    """Return after how many steps from ``at_s`` the slow rank's share has the level that it has before ``until_s``."""
    shares = [len(step["samples"]) for step in block[SLOW] if at_s <= step["end_s"] <= until_s]
    level = median(shares[-len(shares) // 3 :])
    return next(i for i, share in enumerate(shares) if abs(share / level - 1) <= _TOLERANCE)


def fitted(blocks: list[Block]) -> tuple[float, float]:
    """Return (c, d) of the fast ranks' own times c + d · samples."""
    points = [
        (len(rank[-1]["samples"]), median(step["own_s"] for step in rank[_WARM_UP_STEPS:]))
        for block in blocks
        for number, rank in enumerate(block)
        if number != SLOW
    ]
    samples, seconds = np.array(points).T
    rows: NDArray[np.float64] = np.stack([np.ones(len(points)), samples], axis=1)
    (fixed_s, per_sample_s), *_ = np.linalg.lstsq(rows, seconds, rcond=None)
    return float(fixed_s), float(per_sample_s)


def assert_once(blocks: list[Block], batch: int) -> int:
    """Return how many samples the ranks got; each must have come once in each epoch."""
    by_step = [chain.from_iterable(one["samples"] for one in step) for b in blocks for step in zip(*b, strict=True)]
    epochs = [by_step[i : i + STEPS_PER_EPOCH] for i in range(0, len(by_step), STEPS_PER_EPOCH)]
    total = 0
    for steps in epochs:
        counts = Counter(chain.from_iterable(steps))
        if set(counts.values()) != {1} or len(counts) != len(steps) * batch:
            raise SystemExit("samples were not used exactly once")
        total += len(counts)
    return total


def measure(batch: int, cores: float, rounds: int) -> tuple[dict[str, Any], Block, list[float]]:
    """Return the result, the block in which quotas change, and when they do."""
    blocks = [WARM_UP, *[ROUND] * rounds, CHANGES, SETTLE, *[ROUND] * rounds]
    changes: list[tuple[int, float]] = []
    at_s: list[float] = []
    with ExitStack() as stack:
        limits = stack.enter_context(quotas([cores] * 2 * RANKS))
        slow = [limits[SLOW], limits[RANKS + SLOW]]

        def limit(each: float) -> None:
            at_s.append(time.monotonic())
            for one in slow:
                one.limit(each)

        def look() -> None:
            if changes and ours.step() >= changes[0][0]:
                limit(changes.pop(0)[1])

        ours = stack.enter_context(way("free", batch, blocks, limits[:RANKS], look))
        equal_blocks = [WARM_UP, *[ROUND] * 2 * rounds]
        equal = stack.enter_context(way("equal", batch, equal_blocks, limits[RANKS:], lambda: None))
        ours.run(), equal.run()
        alike = [(ours.run(), equal.run()) for _ in range(rounds)]
        begin = sum(blocks[: 1 + rounds])
        changes += [(begin + SLOW_AT, cores / 2), (begin + FAST_AT, cores)]
        changing = ours.run()
        limit(cores / 2)
        ours.run()
        mixed = [(ours.run(), equal.run()) for _ in range(rounds)]
        once = [assert_once(one.blocks, batch) for one in (ours, equal)]
    own_fixed_s, per_sample_s = fitted([*chain.from_iterable(alike + mixed)])
    own_s = own_fixed_s + per_sample_s * batch / EQUIVALENT
    fixed_s = median(median(step_s(pair[1])) for pair in alike) - per_sample_s * batch / RANKS
    ideal_s = fixed_s + per_sample_s * batch / EQUIVALENT
    times = {name: [median(step_s(pair[i])) for pair in mixed] for i, name in enumerate(("with shares", "lockstep"))}
    return (
        {
            "batch": batch,
            "cores of each rank": cores,
            "equal ranks: rate relative to equal shares": median(
                median(step_s(theirs)) / median(step_s(one)) for one, theirs in alike
            ),
            "c_ms": 1e3 * fixed_s,
            "d_ms per sample": 1e3 * per_sample_s,
            "3.5 equal ranks_ms": 1e3 * ideal_s,
            **{f"{name}_ms": 1e3 * median(each) for name, each in times.items()},
            **{f"{name}: rate relative to 3.5 equal ranks": ideal_s / median(each) for name, each in times.items()},
            "with shares: rate relative to 3.5 equal ranks by own times alone": own_s / median(times["with shares"]),
            "rate with shares relative to lockstep": median(
                one / other for one, other in zip(times["lockstep"], times["with shares"], strict=True)
            ),
            "shares": [len(rank[-1]["samples"]) for rank in mixed[-1][0]],
            "a slow rank is followed after steps": followed(changing, at_s[0], at_s[1]),
            "its recovery is followed after steps": followed(changing, at_s[1], float("inf")),
            "samples used, each once": sum(once),
        },
        changing,
        at_s,
    )


def picture(block: Block, at_s: list[float], batch: int) -> bytes:
    """Return the ranks' shares over the block's steps, as SVG."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for number, rank in enumerate(block):
            shares = [100 * len(step["samples"]) / batch for step in rank]
            axes.step(range(len(shares)), shares, where="post", label=f"node {number + 1}")
        for seconds, text in zip(at_s, ("node 4 gets half its cores", "and all of them again"), strict=False):
            step = sum(one["end_s"] < seconds for one in block[0])
            axes.axvline(step, color="gray", linewidth=0.8, linestyle=":")
            axes.annotate(text, (step, 33), fontsize=8, xytext=(3, 0), textcoords="offset points")
        axes.set(xlabel="step", ylabel="share of the batch (%)", ylim=(0, 36))
        axes.legend(loc="lower left", ncols=2)

    return drawn(draw, 6.4, 2.8)


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batch", type=int, default=768)
    parser.add_argument("--cores", type=float, default=0.4, help="of a rank; the slow one gets half of that")
    parser.add_argument("--picture", type=Path, help="where to draw the shares over time, as SVG")
    arguments = parser.parse_args()
    os.environ |= fork_server.ALLOCATOR  # as in the agent's training processes
    result, block, at_s = measure(arguments.batch, arguments.cores, arguments.rounds)
    for name, value in result.items():
        print(f"{name}: {value if not isinstance(value, float) else round(value, 3)}")
    if arguments.picture:
        arguments.picture.write_bytes(picture(block, at_s, arguments.batch))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
