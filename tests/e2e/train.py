"""A small trainer with steps of a known duration: float64, fixed global batch, made-up data."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import pilot.train

SAMPLES = 1797

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, required=True)
parser.add_argument("--step-s", type=float, required=True)
parser.add_argument("--until", type=Path, help="a file: the epoch in which it appears is the last one")
parser.add_argument("--save", help="where to put the final parameters")
parser.add_argument("--sharded", action="store_true", help="divide the model over the processes of a replica")
arguments = parser.parse_args()

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
pixels = torch.rand(SAMPLES, 64)
target = pixels.square().sum(1, keepdim=True).round()
model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 1))
if arguments.sharded:
    for part in (model[0], model):
        fully_shard(part, mesh=pilot.train.replica_mesh())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
session = pilot.train.session(model, optimizer, seed=1)
loader = session.loader(TensorDataset(pixels, target), global_batch_size=96)
for _ in session.epochs(arguments.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        time.sleep(arguments.step_s)
        session.step(loss)
    if arguments.until and arguments.until.exists():
        session.stop()
parameters = {name: getattr(one, "full_tensor", lambda one=one: one)() for name, one in model.state_dict().items()}
if arguments.save and session.rank == 0:
    torch.save(parameters, arguments.save)
