"""Seldom-synchronised training on a slow network, and beside torchft's. As root, on a machine without other work.

Four pilots have a network namespace each, with 100 Mbit/s in both directions and 40 ms from one to another (so 80 ms
there and back), and equal quotas of the machine's cores. Trainers of one node each, all four at once, say what a node
does alone; then one trainer of four nodes exchanges in every step, and others once a round.

* Rates are inner steps per second over whole rounds. The expected one is 4 · alone · t / (t + x / every): t is the time
  of a step alone, x the exchange, from a node's last inner step to its first one of the next round without the step
  itself, of the node that waits least; the median over the rounds.
* Bytes are what the kernel counts on the nodes' interfaces, with headers and all that pilots tell their coordinator.
* One node is killed, and another one joins: the longest time that one of the others was without a step.

``--torchft PYTHON``: an interpreter with torchft-nightly, whose DiLoCo takes turns with ours, over this machine's
loopback.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks import torchft_peer
from benchmarks.seldom_pool import NODES, Moment, SlowPool, Step, Trainer, slow_pool
from benchmarks.seldom_script import BATCH
from benchmarks.slow_network import unavailable
from pilot.agent import fork_server

MBIT_S, DELAY_S, CORES, EVERY, ROUNDS = 100.0, 0.04, 0.4, 100, 4
PEER_NODES, PEER_EVERY, PEER_TURNS = 2, 50, 5
_ALONE_S = 10.0
_STEPS = 5
"""Synchronous steps of a measurement."""
Result = dict[str, Any]


def alone(pool: SlowPool) -> list[float]:
    """Return the steps per second of each of ``NODES`` trainers of one node."""
    with ExitStack() as stack:
        trainers = [stack.enter_context(pool.training(nodes=1)) for _ in range(NODES)]
        pool.limit(pool.cores)
        begin = pool.now()
        time.sleep(_ALONE_S)
        end = pool.now()
        return [trainer.steps_between(begin.at_s, end.at_s) / (end.at_s - begin.at_s) for trainer in trainers]


def together(pool: SlowPool, trainer: Trainer, rounds: int) -> Result:
    """Return what a group does in so many rounds."""
    begin = _next_round(pool, trainer)
    for _ in range(rounds):
        end = _next_round(pool, trainer)
    return summary(trainer.steps(), begin, end)


def _next_round(pool: SlowPool, trainer: Trainer) -> Moment:
    """Wait for the first inner step of another round."""
    known = max(step.round for step in trainer.newest(NODES).values())
    return pool.until(lambda: any(step.round > known for step in trainer.newest(NODES).values()))


def in_step(pool: SlowPool, trainer: Trainer) -> Result:
    """Return what a group does that exchanges in every step."""

    def steps() -> int:
        return min((len(each) for each in trainer.steps().values()), default=0)

    begin, known = pool.until(lambda: bool(trainer.newest(NODES))), steps()
    end = pool.until(lambda: steps() >= known + _STEPS)
    return summary(trainer.steps(), begin, end)


def summary(steps: dict[str, list[Step]], begin: Moment, end: Moment) -> Result:
    """Return the rate, the bytes per sample and the exchange of the steps between two moments."""
    within = [[step for step in each if begin.at_s < step.end_s <= end.at_s] for each in steps.values()]
    within = [each for each in within if each]
    count = sum(map(len, within))
    step_s = median(after.end_s - one.end_s for each in within for one, after in pairwise(each))
    return {
        "inner steps per s": count / (end.at_s - begin.at_s),
        "bytes per sample": (end.sent_bytes - begin.sent_bytes) / (count * BATCH),
        "step_ms": 1e3 * step_s,
        "exchanges_s": exchanges_s(within, step_s),
        "steps of each node": [len(each) for each in within],
    }


def exchanges_s(steps: list[list[Step]], step_s: float) -> list[float]:
    """Return the time between two rounds without a step's own, of the process that waited least, for each round."""
    waits_s: dict[int, list[float]] = {}
    for each in steps:
        for last, first in pairwise(each):
            if first.round > last.round:
                waits_s.setdefault(first.round, []).append(first.end_s - last.end_s - step_s)
    return [min(waits) for _, waits in sorted(waits_s.items()) if len(waits) == len(steps)]


def death(pool: SlowPool, trainer: Trainer) -> float:
    """Kill a node; return for how many seconds another one was without a step until the group went on."""
    begin = pool.now()
    pool.kill(trainer)
    end = pool.until(lambda: _has_trained(trainer, NODES - 1))
    return longest_gap_s(list(trainer.steps().values()), begin.at_s, end.at_s)


def newcomer(pool: SlowPool, trainer: Trainer) -> tuple[float, float]:
    """Add a node; return for how many seconds another one was without a step until the group went on, and how many
    it took until the first step of the new one.
    """
    others = trainer.newest(NODES - 1)
    begin = pool.now()
    pool.add()
    end = pool.until(lambda: _has_trained(trainer, NODES))
    pool.limit(pool.cores)
    steps = trainer.steps()
    (new,) = steps.keys() - others.keys()
    return longest_gap_s([steps[name] for name in others], begin.at_s, end.at_s), steps[new][0].end_s - begin.at_s


def _has_trained(trainer: Trainer, size: int) -> bool:
    """Whether all processes of a group of this size have done a few steps in it."""
    steps = trainer.steps()
    return len(steps) == size and all(
        [step.size for step in each[-_STEPS:]] == [size] * _STEPS for each in steps.values()
    )


def longest_gap_s(steps: list[list[Step]], begin_s: float, end_s: float) -> float:
    """Return the longest time between two steps of a process that was not over before ``begin_s``."""
    gaps = [(one.end_s, after.end_s) for each in steps for one, after in pairwise(each)]
    return max(after_s - one_s for one_s, after_s in gaps if after_s > begin_s and one_s < end_s)


def measure(pool: SlowPool, every: int, rounds: int) -> dict[str, Result]:
    """Measure on the slow network, and print each result; nodes alone come before and after each kind of rounds."""
    found: dict[str, Result] = {}
    with pool.training() as trainer:
        synchronous = in_step(pool, trainer)
        found["synchronous"] = synchronous | changes(pool, trainer, synchronous["step_ms"])
    show("synchronous", found["synchronous"])
    before = alone(pool)
    for name, options in (("float32", ""), ("int8", ",wire=int8")):
        with pool.training(f"diloco:every={every}{options}") as trainer:
            result = together(pool, trainer, rounds)
            if name == "float32":
                result |= changes(pool, trainer, result["step_ms"])
        after = alone(pool)
        found[name] = result | compared(result, synchronous, before + after, every)
        before = after
        show(name, found[name])
    return found


def compared(rounds: Result, synchronous: Result, alone: list[float], every: int) -> Result:
    """Return a rate relative to those of nodes alone and to the expected one, and bytes to synchronous ones."""
    rate = mean(alone)
    expected = 1 / (1 + median(rounds["exchanges_s"]) * rate / every)
    fraction = rounds["inner steps per s"] / (NODES * rate)
    return {
        "alone: steps per s of a node": alone,
        "fraction of the rate alone": fraction,
        "fraction that synchronous training reaches": synchronous["inner steps per s"] / (NODES * rate),
        "expected fraction": expected,
        "rate relative to the expected one": fraction / expected,
        "times fewer bytes per sample": synchronous["bytes per sample"] / rounds["bytes per sample"],
    }


def changes(pool: SlowPool, trainer: Trainer, step_ms: float) -> Result:
    """Return what a death and a newcomer cost, in seconds without a step besides the step itself."""
    dead_s = death(pool, trainer)
    joined_s, first_s = newcomer(pool, trainer)
    return {
        "death: longest time without a step_s": dead_s - step_ms / 1e3,
        "newcomer: longest time without a step_s": joined_s - step_ms / 1e3,
        "newcomer: from its pilot's start to its first step_s": first_s,
    }


def show(name: str, result: Result) -> None:
    """Print a result."""
    print(f"{name}:")
    for key, value in result.items():
        values = value if isinstance(value, list) else [value]
        print(f"  {key}: {', '.join(f'{each:.4g}' for each in values)}", flush=True)


def main() -> None:
    """Print what was measured and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--cores", type=float, default=CORES, help="of each node")
    parser.add_argument("--torchft", type=Path, metavar="PYTHON", help="an interpreter that has torchft-nightly")
    parser.add_argument("--only-torchft", action="store_true", help="leave out the slow network")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing stays behind
    os.environ |= {**fork_server.ALLOCATOR, "MPIR_CVAR_NOLOCAL": "1"}
    results: dict[str, Result] = {}
    if not arguments.only_torchft:
        if reason := unavailable():
            raise SystemExit(reason)
        with slow_pool(MBIT_S, DELAY_S, arguments.cores) as pool:
            results = measure(pool, arguments.every, arguments.rounds)
    if arguments.torchft:
        results["beside torchft"] = torchft_peer.measure(arguments.torchft, PEER_NODES, PEER_EVERY, PEER_TURNS)
        show("beside torchft", results["beside torchft"])
    else:
        print("beside torchft: not measured (--torchft)")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
