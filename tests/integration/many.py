"""Trains a model of many parameters, has an optimizer for each layer, or evaluates many values."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train


def main(layers: int, values: int, *, optimizer_each: bool, alike: bool) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    parts = dict(model.named_children()) if optimizer_each else {"whole": model}
    optimizers = {name: torch.optim.SGD(part.parameters()) for name, part in parts.items()}
    data = TensorDataset(torch.ones(24, 2))
    session = pilot.train.session(model, optimizers, seed=0 if alike else os.getpid())
    loader = session.loader(data, global_batch_size=12)
    for _ in session.epochs(2):
        for (x,) in loader:
            model.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            session.step(loss)
        means = session.evaluate(data, lambda _: {f"accuracy of class {number}": number for number in range(values)})
        print(means == {f"accuracy of class {number}": number for number in range(values)}, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), optimizer_each="each" in sys.argv, alike="differ" not in sys.argv)
