"""The training loader against torch's ``DataLoader``: seconds until the next batch of the same dataset.

Both run in one process, epochs of one and the other in turn; a ratio compares two consecutive epochs. Between batches
both train a small network of the script's own, untimed: a loop that only loads would keep the loader's code in the
caches. Without workers CPU time is measured, which other processes disturb less. Also measured is the cost of an
epoch's order: when it is made, when a plan needs it again, and in the next epoch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

import pilot.train
from pilot.train.data.order import Order, shuffled

BATCH = 256
STEPS = 40
ROUNDS = 15
WIDTH = 64
ORDER_SAMPLES = 50_000_000


class Rows(Dataset[Any]):
    """Small samples, read in Python."""

    def __init__(self, samples: int) -> None:
        self.rows = torch.randn(samples, WIDTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index], index


class Noisy(Rows):
    """With noise from torch's generator."""

    def __getitem__(self, index: int) -> Any:
        return self.rows[index] + 0.1 * torch.randn(WIDTH), index


class Flipped(Rows):
    """With a transformation driven by numpy's generator."""

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return (row.flip(0) if np.random.rand() < 0.5 else row), index


class AtOnce(Rows):
    """With ``__getitems__``."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return list(zip(self.rows[indices], indices, strict=True))


def subjects(samples: int) -> dict[str, tuple[Dataset[Any], dict[str, Any]]]:
    """Name → (dataset, options of both loaders)."""
    tensors = TensorDataset(torch.randn(samples, WIDTH), torch.arange(samples))
    return {
        "tensors": (tensors, {}),
        "a subset of them": (Subset(tensors, range(samples)), {}),
        "rows": (Rows(samples), {}),
        "rows at once": (AtOnce(samples), {}),
        "rows with noise (torch)": (Noisy(samples), {}),
        "rows, flipped (numpy)": (Flipped(samples), {}),
        "rows, two workers": (Rows(samples), {"num_workers": 2, "persistent_workers": True}),
    }


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Median milliseconds until the next batch of a subject, and the ratio of the rates."""
    torch.set_num_threads(1)
    dataset, options = subjects(BATCH * STEPS)[name]
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = pilot.train.session(model, optimizer)
    ours = session.loader(dataset, global_batch_size=BATCH, **options)
    theirs: DataLoader[Any] = DataLoader(dataset, batch_size=BATCH, shuffle=True, **options)
    clock = time.perf_counter if options else time.thread_time  # without workers all of it runs in this thread
    train = _training()

    def step() -> None:
        session.step()
        train()

    pilot_s, torch_s = [], []
    for _ in session.epochs(rounds + 1):
        pilot_s.append(_epoch_s(ours, step, clock))
        torch_s.append(_epoch_s(theirs, train, clock))
    pairs = list(zip(pilot_s, torch_s, strict=True))[1:]  # the first warms up
    return {
        "pilot_ms": 1e3 * median(p for p, _ in pairs) / STEPS,
        "torch_ms": 1e3 * median(t for _, t in pairs) / STEPS,
        "rate_relative_to_torch": median(t / p for p, t in pairs),
        "ratios": [t / p for p, t in pairs],
    }


def _training() -> Callable[[], None]:
    """A step of a network that does not belong to the session."""
    network = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
    inputs = torch.randn(BATCH, WIDTH)

    def step() -> None:
        network.zero_grad()
        network(inputs).square().mean().backward()

    return step


def _epoch_s(loader: Iterable[Any], step: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds that the loop waited for its batches, the epoch's start and end included."""
    waited_s = 0.0
    batches = None
    while True:
        began_s = clock()
        batches = iter(loader) if batches is None else batches
        came = next(batches, None) is not None
        waited_s += clock() - began_s
        if not came:
            return waited_s
        step()


def orders() -> dict[str, float]:
    """Seconds until the first samples of an epoch's order are available."""
    began_s = time.perf_counter()
    order = shuffled(0, ORDER_SAMPLES)
    made_s = time.perf_counter() - began_s
    return {
        "samples": ORDER_SAMPLES,
        "loader made_s": made_s,
        "first epoch_s": _first_s(order, 0),
        "new plan_s": _first_s(order, 0),
        "next epoch_s": _first_s(order, 1),
        "resumed in another epoch_s": _first_s(shuffled(0, ORDER_SAMPLES), 5),
    }


def _first_s(order: Order, epoch: int) -> float:
    began_s = time.perf_counter()
    order.indices(epoch, ORDER_SAMPLES // 2, ORDER_SAMPLES // 2 + BATCH)
    return time.perf_counter() - began_s


def main() -> None:
    """Print a table and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--subjects", nargs="*", help="of which datasets (default: all, and the order)")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for name in arguments.subjects or subjects(1):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:  # a process can have only one session
            results[name] = one = process.submit(measure, name, arguments.rounds).result()
        print(
            f"{name:>24}: pilot {one['pilot_ms']:6.2f} ms, DataLoader {one['torch_ms']:6.2f} ms for {BATCH} samples,"
            f" {one['rate_relative_to_torch']:.2f} × its rate",
            flush=True,
        )
    if not arguments.subjects:
        results["order"] = orders()
        print(f"{'order':>24}: {results['order']}")
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
