"""Ends as if its GPU failed, or trains as if there were none: ``sick_gpu_script.py fails|missing MARK ENOUGH``.

The first process to make the file MARK is well. No machine of ours has a GPU that could be broken.
"""

import sys
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.state.training import Training

kind, mark, enough = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
try:
    mark.touch(exist_ok=False)
    sick = False
except FileExistsError:
    sick = True
if kind == "missing":
    Training.is_on_gpu = property(lambda _training: not sick)  # type: ignore[assignment, method-assign]  # there is no GPU

torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
session = pilot.train.session(model, optimizer)
data = TensorDataset(torch.randn(64, 3), torch.randn(64, 1))
loader = session.loader(data, global_batch_size=4)
for _ in session.epochs(1_000_000):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        if kind == "fails" and sick:
            raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
        session.step(loss)
    if enough.exists():
        session.stop()
