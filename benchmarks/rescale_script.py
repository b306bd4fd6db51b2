"""What a worker of the rescale benchmark runs: it records when each of its steps ended."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn

import pilot.train
from benchmarks.subjects import BATCH, data, make, sgd


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--subject", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make(arguments.subject)
    optimizer = sgd(model)
    session = pilot.train.session(model, optimizer, lr_rule="none")
    loader = session.loader(data(arguments.subject, 1000 * BATCH), batch_size=BATCH)
    for _ in session.epochs(1_000_000):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            if session.step(loss):
                with (arguments.folder / f"steps.{os.getpid()}").open("a") as log:
                    print(time.monotonic(), file=log)


if __name__ == "__main__":
    main()
