"""What ``torchrun`` runs for the rescale benchmark: DDP over gloo, periodic snapshots, resumed after a restart."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.subjects import BATCH, data, make, sgd

SNAPSHOT_STEPS = 5


def main() -> None:
    subject, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = make(subject)
    optimizer = sgd(model)
    snapshot, unfinished = folder / "snapshot.pt", folder / "snapshot.unfinished"
    if snapshot.exists():
        state = torch.load(snapshot)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    parallel = DistributedDataParallel(model)
    x, y = data(subject, BATCH).tensors
    for step in range(1_000_000):
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(x), y).backward()
        optimizer.step()
        if dist.get_rank() == 0:
            with (folder / f"steps.{dist.get_world_size()}").open("a") as log:
                print(time.monotonic(), file=log)
            if step % SNAPSHOT_STEPS == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
                unfinished.replace(snapshot)  # torchrun may kill it at any moment


if __name__ == "__main__":
    main()
