"""The plain loop, elastic with torchft; after its example ``train_ddp.py``. Runs in an environment of its own."""

import os
from datetime import timedelta
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore
from torch.utils.data import DataLoader
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from benchmarks.peers_record import EPOCHS, NODES, SUBJECT, Numbered, Record
from benchmarks.subjects import BATCH, make, sgd

torch.set_num_threads(1)
model = make(SUBJECT)
optimizer = sgd(model)


def load(state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
seat = int(os.environ["REPLICA_GROUP_ID"])
manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
    min_replica_size=1,
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
    replica_id=f"node{seat}",
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=store.port,
    hostname="127.0.0.1",
    timeout=timedelta(seconds=30),
)
parallel = DistributedDataParallel(manager, model)
managed = Optimizer(manager, optimizer)
sampler = DistributedSampler(Numbered(), seat, NODES, group_rank=0, num_replicas=1, shuffle=True)
loader = DataLoader(Numbered(), BATCH, sampler=sampler)
record = Record(model)
for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y, samples in loader:
        managed.zero_grad()
        loss = nn.functional.cross_entropy(parallel(x), y)
        loss.backward()
        before = manager.current_step()
        managed.step()
        if manager.current_step() > before and manager.is_participating():
            record.done(manager.current_step(), samples)
