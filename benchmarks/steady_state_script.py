"""What a rank of the steady-state benchmark runs: rounds of an elastic session and of DDP in turn, in one process.

DDP runs with its gradients copied into its buckets, and with gradients that are views of them. A step's time runs from
one step's end to the next one's, so it includes its batch.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import pilot.train
from benchmarks.subjects import BATCH, data, make, sgd


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--subject", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    samples = data(arguments.subject, arguments.steps * BATCH * 2)

    model = make(arguments.subject)
    optimizer = sgd(model)
    session = pilot.train.session(model, optimizer, lr_rule="none")
    loader = session.loader(samples, global_batch_size=2 * BATCH)
    rounds: list[dict[str, Any]] = []
    plain: dict[str, Plain] = {}
    for _ in session.epochs(arguments.rounds):
        times, waits, used = [], [], []
        rank_began_s = _rank_process_cpu_s(arguments.folder)
        started_s, waited_s, began_s = time.perf_counter(), session._step.summing.waited_s, time.process_time()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            session.step(loss)
            times.append(time.perf_counter() - started_s)
            waits.append(session._step.summing.waited_s - waited_s)
            used.append(time.process_time() - began_s)
            started_s, waited_s, began_s = time.perf_counter(), session._step.summing.waited_s, time.process_time()
        rank_s = _rank_process_cpu_s(arguments.folder) - rank_began_s
        ours = {"pilot_s": times, "wait_s": waits, "pilot_cpu_s": used, "rank_process_cpu_s": rank_s}
        if not plain:
            plain = peers(arguments.subject, samples, arguments.folder, session.rank)
        for name, peer in plain.items():
            ours |= dict(zip((f"{name}_s", f"{name}_cpu_s"), peer.epoch(), strict=True))
        rounds.append(ours)
        (arguments.folder / f"rank{session.rank}.json").write_text(json.dumps(rounds))


def rank_process(folder: Path) -> Path:
    """The file with the number of the first node's rank process."""
    return folder / "rank_process"


def _rank_process_cpu_s(folder: Path) -> float:
    """Seconds of a core that it has used; 0 until its number is known, in the first round."""
    if not rank_process(folder).exists():
        return 0.0
    user, system, *_ = psutil.Process(int(rank_process(folder).read_text())).cpu_times()
    return float(user + system)


def peers(subject: str, samples: torch.utils.data.TensorDataset, folder: Path, rank: int) -> dict[str, Plain]:
    """The two kinds of DDP, by name."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    return {"ddp": Plain(subject, samples, views=False), "ddp_views": Plain(subject, samples, views=True)}


class Plain:
    """The same loop with DDP over gloo."""

    def __init__(self, subject: str, samples: torch.utils.data.TensorDataset, *, views: bool) -> None:
        self._model = DistributedDataParallel(make(subject), gradient_as_bucket_view=views)
        self._optimizer = sgd(self._model)
        sampler: DistributedSampler[object] = DistributedSampler(samples)
        self._loader: Iterable[tuple[torch.Tensor, torch.Tensor]] = DataLoader(samples, BATCH, sampler=sampler)

    def epoch(self) -> tuple[list[float], list[float]]:
        """Seconds, and seconds of a core, of each step."""
        dist.barrier()
        times, used = [], []
        started_s, began_s = time.perf_counter(), time.process_time()
        for x, y in self._loader:
            self._optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self._model(x), y)
            loss.backward()
            self._optimizer.step()
            times.append(time.perf_counter() - started_s)
            used.append(time.process_time() - began_s)
            started_s, began_s = time.perf_counter(), time.process_time()
        dist.barrier()
        return times, used


if __name__ == "__main__":
    main()
