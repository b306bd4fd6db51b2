"""What each rank of ``benchmarks.shares`` runs: blocks of steps when it is its turn; it reports each step."""

from __future__ import annotations

import argparse
import os
import time
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from benchmarks.subjects import data, make, sgd
from benchmarks.turns import Seat

SUBJECT = "small CNN"
STEPS_PER_EPOCH = 16


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shares", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--blocks", type=int, nargs="+", required=True, help="the number of steps of each block")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make(SUBJECT)
    optimizer = sgd(model)
    session = pilot.train.session(model, optimizer, lr_rule="none")
    samples = STEPS_PER_EPOCH * arguments.batch
    numbered = TensorDataset(*data(SUBJECT, samples).tensors, torch.arange(samples))
    loader = session.loader(numbered, global_batch_size=arguments.batch, shares=arguments.shares)
    seat = Seat(arguments.folder, int(Path(os.environ["PILOT_WORKER_SOCKET"]).stem[1:]))
    begins, *ends = accumulate(arguments.blocks, initial=0)
    steps: list[dict[str, Any]] = []
    for step in session.iterations(ends[-1]):
        if step == begins:
            seat.wait()
            steps, begin_s = [], time.monotonic()
        x, y, numbers = loader.next()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        session.step(loss)
        steps.append({"samples": numbers.tolist(), "own_s": session._group.own_s})
        steps[-1]["begin_s"], begin_s = begin_s, time.monotonic()
        steps[-1]["end_s"] = begin_s
        if session.rank == 0:
            (arguments.folder / "step").write_text(str(step))
        if step + 1 in ends:
            seat.tell(steps)
            begins = step + 1


if __name__ == "__main__":
    main()
