"""What ``benchmarks.replicas`` trains, alone in a folder as a user's script is: a model that is divided over replicas.
It records when each of its steps ended.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import pilot.train

layers, width, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
torch.set_num_threads(1)
torch.manual_seed(0)
mesh = pilot.train.replica_mesh()
model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
for part in (*model[::2], model):
    fully_shard(part, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters())
session = pilot.train.session(model, optimizer, lr_rule="none")
samples = TensorDataset(torch.randn(32_000, width, generator=torch.Generator().manual_seed(1)))
loader = session.loader(samples, batch_size=32)
for _ in session.epochs(1_000_000):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), x)
        loss.backward()
        if session.step(loss):
            with (folder / f"steps.{os.getpid()}").open("a") as log:
                print(time.monotonic(), file=log)
