"""What each node of torchft's DiLoCo runs beside ours, in an environment of its own (torchft-nightly): turns of whole
rounds, with the same model, batch and settings.
"""

from __future__ import annotations

import argparse
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import TCPStore
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.subjects import Endless, make, sgd
from benchmarks.turns import Seat

_LIMIT = timedelta(seconds=600)


def main() -> None:
    from torchft.local_sgd import DiLoCo
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    parser = argparse.ArgumentParser()
    parser.add_argument("--subject", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--turn", type=int, required=True, help="rounds of a turn")
    parser.add_argument("--lighthouse", required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = make(arguments.subject)
    optimizer = sgd(model)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=_LIMIT),
        min_replica_size=arguments.nodes,
        load_state_dict=None,
        state_dict=None,
        use_async_quorum=False,
        init_sync=False,
        replica_id=str(arguments.rank),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=arguments.lighthouse,
        hostname="127.0.0.1",
        timeout=_LIMIT,
        quorum_timeout=_LIMIT,
    )
    samples = Endless(arguments.subject)
    sampler: Any = DistributedSampler(samples, arguments.nodes, arguments.rank)
    batches = iter(DataLoader(samples, arguments.batch, sampler=sampler))
    seat = Seat(arguments.folder, arguments.rank)
    with DiLoCo(manager, [model], optimizer, outer, arguments.every, pin_memory=False):
        while True:
            seat.wait()
            begin_s = time.monotonic()
            for _ in range(arguments.turn * arguments.every):
                x, y = next(batches)
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
            seat.tell({"steps": arguments.turn * arguments.every, "begin_s": begin_s, "end_s": time.monotonic()})


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    main()
