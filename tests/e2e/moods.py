"""A trainer whose script obeys files in a folder: each file is taken by one process, which acts on it.

``block``: sleep for ever. ``spin``, ``wait``: compute, or do nothing, until a file ``go`` exists. ``lose``: lose its
contribution to the next gather on the way.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.comm.channel import Channel
from pilot.comm.messages import AnyNote, Gather

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


def send_unless_lost(channel: Channel, note: AnyNote, fd: int | None = None) -> None:
    if not (isinstance(note, Gather) and took("lose")):
        send(channel, note, fd)


send, Channel.send = Channel.send, send_unless_lost
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
        while took("wait"):
            while not (folder / "go").exists():
                time.sleep(0.5)
        while took("spin"):
            while not (folder / "go").exists():
                pass
        session.step(loss)
