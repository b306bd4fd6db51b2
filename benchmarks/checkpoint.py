"""Checkpoints against PyTorch's own: writing, loading, parallel writing, and how far they slow training down.

Every ratio is of medians over interleaved rounds of one run. ``torch.save`` writes a new file, fsyncs it and renames it
over the last one, so that a complete checkpoint exists at all times, as with ours; ours includes checksums and the
fsync of the directory. (A file overwritten in place would reuse the memory that it has just freed, which is faster on a
virtual machine that returns free memory to its host.)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from pilot.checkpoint import store
from pilot.checkpoint.snapshot import Snapshots
from pilot.checkpoint.tree import encode

ROUNDS = 7
MODELS = {"1M": (4, 512), "25M": (6, 2048), "100M": (6, 4096), "25M in 1000 tensors": (500, 224)}
"""Name → (layers, width): layers · width² parameters."""

State = dict[str, Any]
_steps = itertools.count(1)


def main() -> None:
    """Print and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--directory", type=Path, help="on the file system to be measured (default: a temporary one)")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS, metavar="NAME")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        results = {name: measure(Path(folder, name), *MODELS[name]) for name in arguments.models}
    text = json.dumps(results, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")


def measure(directory: Path, layers: int, width: int) -> dict[str, float]:
    """All figures for one model; ``directory`` is created."""
    directory.mkdir()
    state = trained(layers, width)
    alone, together = write_and_load(directory, state), parallel(directory, layers, width)
    return {
        "state_mb": round(size_bytes(state) / 1e6, 1),
        **alone,
        **together,
        "write_by_2_ranks_ratio": round(alone["torch_save_s"] / together["write_by_2_ranks_s"], 2),
        **felt_by_training(directory, state),
    }


def trained(layers: int, width: int) -> State:
    """Model and optimizer (SGD with momentum) after one step, identical in every process."""
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def size_bytes(state: State) -> int:
    """Bytes of the model and its momenta."""
    return 2 * sum(tensor.nbytes for tensor in state["model"].values())


def write_and_load(directory: Path, state: State) -> dict[str, float]:
    """Times in seconds, and ratios (above 1: faster than PyTorch)."""
    file = directory / "torch.pt"

    def ours() -> None:
        store.write(directory, 1, next(_steps), state, kept=1)

    times = interleaved(
        {
            "torch_save": lambda: torch_save(state, file),
            "write": ours,
            "torch_load": lambda: torch.load(file, weights_only=True),
            "load": lambda: store.load_newest(directory, 1),
            "verify": lambda: store.verify(store.listing(directory)[0].path),
        }
    )
    file.unlink()
    return {
        **{f"{name}_s": seconds for name, seconds in times.items()},
        "write_ratio": round(times["torch_save"] / times["write"], 2),
        "load_ratio": round(times["torch_load"] / times["load"], 2),
    }


def torch_save(state: State, path: Path) -> None:
    """What a careful script does today with ``torch.save``."""
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def interleaved(actions: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each action; the first round warms up caches and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(ROUNDS + 1):
        for name, action in actions.items():
            started_s = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - started_s)
    return {name: round(median(values[1:]), 4) for name, values in times.items()}


RANK = """
import sys, time, torch
from pathlib import Path
from benchmarks.checkpoint import trained
from pilot.checkpoint import store
directory, part, parts, layers, width = Path(sys.argv[1]), *map(int, sys.argv[2:])
torch.set_num_threads(1)
state = trained(layers, width)
print("ready", flush=True)
for line in sys.stdin:
    store.write_part(directory, 2, int(line), part, parts, state)
    print("written", flush=True)
"""


def parallel(directory: Path, layers: int, width: int, parts: int = 2) -> dict[str, float]:
    """Seconds from the leader's request until the index of ``parts`` ranks' parts is published."""
    size = [str(layers), str(width)]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(directory), str(part), str(parts), *size],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in range(parts)
    ]
    _answers(ranks)

    def write() -> None:
        step = next(_steps)
        for rank in ranks:
            print(step, file=rank.stdin, flush=True)
        _answers(ranks)
        store.write_index(directory, 2, step, parts, kept=1)

    times = interleaved({f"write_by_{parts}_ranks": write})
    for rank in ranks:
        rank.communicate()
    return {f"{name}_s": seconds for name, seconds in times.items()}


def _answers(ranks: list[subprocess.Popen[str]]) -> None:
    for rank in ranks:
        if rank.stdout is None or not rank.stdout.readline():
            raise RuntimeError("a rank of the benchmark died")


def felt_by_training(directory: Path, state: State) -> dict[str, float]:
    """The copy against a bare copy of as many bytes, and steps with a thread writing against steps without."""
    snapshots = Snapshots()
    source, target = (torch.ones(size_bytes(state), dtype=torch.uint8) for _ in range(2))
    copies = interleaved({"snapshot": lambda: snapshots.take(encode(state)), "bare_copy": lambda: target.copy_(source)})
    quiet = steps_until(time.perf_counter() + 1)
    busy, lost = [], []
    for _ in range(ROUNDS):
        copy = snapshots.take(encode(state))
        writer = threading.Thread(target=store.write, args=(directory, 3, next(_steps), copy, 1))
        writer.start()
        during = steps_until(None, writer)
        busy.append(max(during))
        lost.append(sum(during) - len(during) * median(quiet))
    return {
        **{f"{name}_s": seconds for name, seconds in copies.items()},
        "snapshot_per_bare_copy": round(copies["snapshot"] / copies["bare_copy"], 2),
        "step_s": round(median(quiet), 5),
        "longest_step_s": round(max(quiet), 5),
        "longest_step_while_writing_s": round(median(busy), 5),
        "training_lost_to_one_write_s": round(median(lost), 4),
    }


def steps_until(end_s: float | None, writer: threading.Thread | None = None) -> list[float]:
    """Seconds of each step of a small training loop, until that time or until the writer has ended."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 256)
    seconds = []
    while writer.is_alive() if writer else time.perf_counter() < (end_s or 0):
        started_s = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started_s)
    return seconds


if __name__ == "__main__":
    main()
