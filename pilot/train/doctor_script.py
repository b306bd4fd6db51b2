"""The script that ``pilot doctor --pilots`` submits: some steps with 8 MB of gradients, and the time per step. What it
finds out about each node (:mod:`pilot.train.doctor_node`) is written beside the trainer's logs.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.io import trainer_folder
from pilot.io.files import publish
from pilot.train import doctor_node
from pilot.train.node.membership import Seat

SEEN = "node-"
"""Prefix of the files with the findings about a node: JSON with its name and some lines."""

STEPS = 30
GRADIENT_BYTES = 8_000_000


def main() -> None:
    """Train on noise; report the median seconds of a step."""
    _look_at_node()
    torch.manual_seed(0)
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    model = nn.Linear(2000, GRADIENT_BYTES // 4 // 2000, bias=False).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(TensorDataset(torch.randn(STEPS, 2000)), global_batch_size=1)
    seconds: list[float] = []
    for _ in session.epochs(1):
        began_s = time.perf_counter()
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x.to(device)).square().mean()
            loss.backward()
            session.step(loss)
            seconds.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
        session.report(step_s=median(seconds))


def _look_at_node() -> None:
    lines = doctor_node.seen(os.environ)
    if Seat.of(os.environ).rank == 0 and (folder := os.environ.get("PILOT_TRAINER_DIR")):
        told = json.dumps([socket.gethostname(), *lines])
        with trainer_folder.held(Path(folder, "logs"), os.environ["PILOT_TRAINER_UID"]) as logs:
            publish(logs / f"{SEEN}{socket.gethostname()}-{os.getpid()}.json", told.encode())


if __name__ == "__main__":
    main()
