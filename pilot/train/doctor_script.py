"""The script that ``pilot doctor --pilots`` submits: some steps with 8 MB of gradients, and the time of a step."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train

STEPS = 30
GRADIENT_BYTES = 8_000_000


def main() -> None:
    """Train on noise; report the median seconds of a step."""
    torch.manual_seed(0)
    model = nn.Linear(2000, GRADIENT_BYTES // 4 // 2000, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(TensorDataset(torch.randn(STEPS, 2000)), global_batch_size=1)
    seconds: list[float] = []
    for _ in session.epochs(1, step_s=lambda: median(seconds)):
        began_s = time.perf_counter()
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            session.step(loss)
            seconds.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()


if __name__ == "__main__":
    main()
