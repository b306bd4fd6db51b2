"""A script for torchrun, with DistributedDataParallel, that saves to PILOT_CHECKPOINT, also at a preemption notice.

torchrun --standalone --nproc-per-node=2 examples/digits_ddp.py --epochs 5
pilot submit --ddp examples/digits_ddp.py --epochs 50
"""

import argparse
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=32, help="of each process")
arguments = parser.parse_args()

notices: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _: notices.append(number))  # this process is about to be stopped
checkpoint = Path(os.environ.get("PILOT_CHECKPOINT", "digits_ddp.pt"))

dist.init_process_group("gloo")
torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=arguments.batch_size, sampler=sampler)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
begin = 0
if checkpoint.exists():
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    begin = saved["epoch"]
parallel = DistributedDataParallel(model)


def save(epoch: int) -> None:
    """By rename, since the process may be killed at any moment."""
    if dist.get_rank() == 0:
        unfinished = checkpoint.with_suffix(".unfinished")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, unfinished)
        unfinished.replace(checkpoint)


for epoch in range(begin, arguments.epochs):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(x), y)
        loss.backward()
        optimizer.step()
        if notices:
            save(epoch)  # this epoch is repeated, from the current parameters
            notices.clear()
    save(epoch + 1)
    if dist.get_rank() == 0:
        print(f"epoch {epoch} on {dist.get_world_size()} processes: loss {loss.item():.4f}")
dist.destroy_process_group()
