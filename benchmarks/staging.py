"""The cost of moving gradients from a GPU to the arena and back, against bare copies of the same bytes, and against
leaving them there as with ``between_nodes="nccl"``.

Without a GPU it says so, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.subjects import BATCH, SUBJECTS, make
from pilot.train.between.between import Between
from pilot.train.between.process_groups import Nccl
from pilot.train.gradients.exchange import Exchange
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Seat

ROUNDS = 7
WORDS = Words.of(0, False, 0.0)


def measure(subject: str) -> dict[str, Any]:
    """Median seconds of a backward pass, of one whose gradients are staged and copied back, of one whose gradients stay
    on the GPU, and of bare copies.
    """
    model = make(subject).cuda()
    inputs = torch.randn(BATCH, SUBJECTS[subject][1], device="cuda")
    size = sum(p.numel() for p in model.parameters())
    on_gpu = torch.empty(size, device="cuda")
    pinned = torch.empty(size, pin_memory=True)

    def backward() -> None:
        model.zero_grad()
        model(inputs).square().mean().backward()

    def copies() -> None:
        pinned.copy_(on_gpu, non_blocking=True)
        on_gpu.copy_(pinned, non_blocking=True)

    plain_s, copied_s = _seconds(backward), _seconds(copies)

    def exchanged(exchange: Exchange) -> None:
        exchange.begin(lambda: None)
        exchange.begin_batch(1.0, last=True)
        backward()
        exchange.flush()
        exchange.finish(WORDS)
        exchange.take()

    def seconds(between: Between | None) -> float:
        exchange = Exchange(list(model.parameters()), between=between)
        taken_s = _seconds(lambda: exchanged(exchange))
        exchange.close()
        return taken_s

    staged_s, on_gpu_s = seconds(None), seconds(Between(Seat(), Nccl))
    return {
        "backward_s": plain_s,
        "staged_s": staged_s,
        "on_gpu_s": on_gpu_s,
        "bare_copies_s": copied_s,
        "cost_in_bare_copies": (staged_s - plain_s) / copied_s,
    }


def _seconds(work: Callable[[], None]) -> float:
    work()
    times = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - started_s)
    return median(times)


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"left_out": "there is no GPU here"}
    if torch.cuda.is_available():
        results = {subject: measure(subject) for subject in ("1M", "25M", "100M", "small CNN", "300 small tensors")}
    for subject, result in results.items():
        print(f"{subject:>18}: {result}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
