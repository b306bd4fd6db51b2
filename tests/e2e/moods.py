"""A trainer whose script does as files in a folder say: one process takes each of them and acts on it.

``block``: it sleeps for ever. ``spin``: it computes until there is a file ``go``.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=Path)
folder = parser.parse_args().folder


def took(mood: str) -> bool:
    """Whether this process, and no other, is to do it."""
    try:
        (folder / mood).rename(folder / f"{mood}.taken")
    except FileNotFoundError:
        return False
    return True


torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
session = pilot.train.session(model, optimizer)
loader = session.loader(TensorDataset(torch.ones(64, 4)), global_batch_size=16)
for _ in session.epochs(10_000):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        time.sleep(0.02)
        while took("block"):
            time.sleep(1e6)
        while took("spin"):
            while not (folder / "go").exists():
                pass
        session.step(loss)
