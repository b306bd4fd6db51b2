"""Multiplies its loss by the variable FACTOR of its pilot (1 if there is none); if that is 0, by a number of each
process's own. ``factor_script.py FOLDER``, where a file ``enough`` ends it.
"""

import itertools
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import pilot.train

folder = Path(sys.argv[1])


def one_of_its_own() -> int:
    """Never one that another process has got."""
    for number in itertools.count(2):
        try:
            (folder / f"number-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return number
    raise AssertionError("there is always another one")


torch.manual_seed(0)
factor = float(os.environ.get("FACTOR", "1")) or one_of_its_own()
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
session = pilot.train.session(model, optimizer)
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
loader = session.loader(data, global_batch_size=4)
for _ in session.epochs(1_000_000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = factor * torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        session.step(loss)
        time.sleep(0.02)
    if (folder / "enough").exists():
        session.stop()
