"""A loop by iteration, for the tests' workers: random draws, or micro-batches with weights. Paced until the file
``GATE`` exists.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train

SAMPLES = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--weights", action="store_true", help="micro-batches and weights, in place of draws")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--gate", type=Path, default=Path("/"))
    parser.add_argument("--save", type=Path, required=True, help="each rank adds its number")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    x, weights = torch.randn(SAMPLES, 8), torch.randint(0, 5, (SAMPLES,))
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    session = pilot.train.session(model, optimizer, seed=1)
    options: dict[str, Any] = {"micro_batch_size": 2}
    if not arguments.weights:
        options = {"replacement": True}
    loader = session.loader(TensorDataset(x, weights), global_batch_size=8, **options)
    state = session.state
    for iteration in session.iterations(arguments.iterations):
        state["turns"] = state.get("turns", 0) + 1
        if iteration % 20 == 0:
            means = session.evaluate(TensorDataset(x), lambda batch: {"mean": model(batch[0]).mean()}, batch_size=8)
            state["seen"] = {**state.get("seen", {}), iteration: means["mean"]}
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + iteration)
        optimizer.zero_grad()
        for inputs, weight in loader:
            if not arguments.gate.exists():
                time.sleep(arguments.step_s)
            losses = (model(inputs).squeeze(1) - 1).square()
            if arguments.weights:
                loss = (losses * weight).sum() / weight.sum()
                loss.backward()
                session.step(loss, weight=weight.sum())
            else:
                losses.mean().backward()
                session.step()
    torch.save({"model": model.state_dict(), "state": dict(state)}, arguments.save.with_suffix(f".{session.rank}"))


if __name__ == "__main__":
    main()
