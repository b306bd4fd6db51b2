"""A script written for torchrun: all that it knows of this project is the names of three variables, and it works
without them.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

epochs, step_s, log = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
module = nn.Linear(8, 1)
optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
checkpoint = Path(os.environ.get("PILOT_CHECKPOINT", "checkpoint.pt"))
first, noticed = 0, []
if checkpoint.exists():
    saved = torch.load(checkpoint)
    module.load_state_dict(saved["model"])
    first = saved["epoch"]
if "notice" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: noticed.append(Path(os.environ["PILOT_NOTICE"]).exists()))


def save(epoch: int, why: str) -> None:
    if rank == 0:
        unfinished = checkpoint.with_suffix(".unfinished")
        torch.save({"model": module.state_dict(), "epoch": epoch}, unfinished)
        unfinished.replace(checkpoint)
        note(f"saved {epoch} {why}")


def note(text: str) -> None:
    with log.open("a") as file:
        print(f"{time.monotonic():.6f} {rank}/{size} {text}", file=file)
    if text != "step":
        print(text)


note(f"begins at {first}")
model = DistributedDataParallel(module)
for epoch in range(first, epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        time.sleep(step_s)
        optimizer.step()
        if rank == 0:
            note("step")
        if noticed:
            save(epoch, f"on notice {noticed}")
    if "notice" not in sys.argv:
        save(epoch + 1, "in time")
    if size == 1 and log.with_name("enough").exists():
        break
dist.destroy_process_group()
if rank == 0:
    note("done")
