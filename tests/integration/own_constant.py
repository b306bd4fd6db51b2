"""A script that computes with a number of each process's own, as one that is drawn without a seed."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train


def number(folder: Path) -> int:
    """Another one in each process: two that are drawn may be almost the same."""
    for one in itertools.count(1):
        try:
            (folder / f"number-{one}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return one
    raise AssertionError("there is always another one")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=["batch_size", "global_batch_size"], required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    nn.init.ones_(model.weight)  # whenever a node comes, its gradient is another one by more than a tenth
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    factor = float(number(arguments.folder))
    session = pilot.train.session(model, optimizer, seed=0, lr_rule="linear")
    samples = TensorDataset(torch.ones(240, 4))
    # Noise would change shares of such short steps, and a difference between unlike divisions is only remarked.
    loader = session.loader(samples, **{arguments.size: 12}, shares="equal")
    for _ in session.epochs(1000):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = (model(x) * factor - 1).square().mean() / factor
            loss.backward()
            session.step(loss)
            if session.size >= 4 and session.steps > session.state.setdefault("until", session.steps + 50):
                session.stop()


if __name__ == "__main__":
    main()
