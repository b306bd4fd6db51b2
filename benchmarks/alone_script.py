"""One way of the benchmark of training alone, in a process of its own: with a session, or as a plain loop."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

import pilot.train
from benchmarks.subjects import BATCH, data, make, sgd
from benchmarks.turns import Seat


def main() -> None:
    """A block is a round: an epoch. Its result is the milliseconds per step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", required=True, choices=["session", "plain"])
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--subject", required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--steps", required=True, type=int)
    parser.add_argument("--rounds", required=True, type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device, seat = torch.device(arguments.device), Seat(arguments.folder, 0)
    model = make(arguments.subject).to(device)
    optimizer = sgd(model)
    samples = data(arguments.subject, arguments.steps * BATCH)

    def told(began_s: float) -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize()
        seat.tell(1e3 * (time.perf_counter() - began_s) / arguments.steps)

    if arguments.way == "plain":
        plain = DataLoader(samples, BATCH, shuffle=True)
        for _ in range(arguments.rounds):
            seat.wait()
            began_s = time.perf_counter()
            for x, y in plain:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                optimizer.step()
            told(began_s)
        return
    session = pilot.train.session(model, optimizer, lr_rule="none")
    loader = session.loader(samples, global_batch_size=BATCH)
    for _ in session.epochs(arguments.rounds):
        seat.wait()
        began_s = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            loss.backward()
            session.step(loss)
        told(began_s)


if __name__ == "__main__":
    main()
