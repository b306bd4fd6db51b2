"""Trains a model of many parameters, or evaluates many values: what ranks tell each other of them is long."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train


def main(layers: int, values: int, *, alike: bool) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters())
    data = TensorDataset(torch.ones(24, 2))
    session = pilot.train.session(model, optimizer, seed=0 if alike else os.getpid())
    loader = session.loader(data, global_batch_size=12)
    for _ in session.epochs(2):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            session.step(loss)
        means = session.evaluate(data, lambda _: {f"accuracy of class {number}": number for number in range(values)})
        print(means == {f"accuracy of class {number}": number for number in range(values)}, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), alike=sys.argv[3] == "alike")
