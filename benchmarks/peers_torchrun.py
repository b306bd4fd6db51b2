"""The plain loop with DDP, for ``torchrun`` elastic and for restarts: it continues from its last snapshot."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.peers_record import EPOCHS, SAMPLES, SNAPSHOT_STEPS, SUBJECT, Numbered, Record
from benchmarks.subjects import BATCH, make, sgd

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = make(SUBJECT)
optimizer = sgd(model)
snapshot = Path(os.environ["PEERS_FOLDER"]) / "snapshot.pt"
step, first_epoch, used = 0, 0, 0
if snapshot.exists():
    state = torch.load(snapshot)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    step, first_epoch, used = state["step"], state["epoch"], state["used"]
parallel = DistributedDataParallel(model)
rank, size = dist.get_rank(), dist.get_world_size()
record = Record(model)
for epoch in range(first_epoch, EPOCHS):
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()[used:]
    loader = DataLoader(Numbered(), BATCH, sampler=order[rank : len(order) - len(order) % size : size])
    for x, y, samples in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(x), y)
        loss.backward()
        optimizer.step()
        step, used = step + 1, used + size * len(samples)
        record.done(step, samples)
        if rank == 0 and step % SNAPSHOT_STEPS == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"step": step, "epoch": epoch, "used": used}, snapshot.with_suffix(".part"))
            snapshot.with_suffix(".part").replace(snapshot)
    used = 0
