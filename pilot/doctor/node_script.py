"""The script that ``pilot doctor --pilots`` submits: some steps with 8 MB of gradients, and the time per step. Each
node's GPUs, and the bandwidths between them and the host and between the node's training processes, are written beside
the trainer's logs.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.host.files import publish
from pilot.rundir import trainer_folder
from pilot.train.node.devices import own_device
from pilot.train.node.membership import Seat
from pilot.train.node.node_group import STORE, NodeGroup, fabric_of

SEEN = "node-"
"""Prefix of the files with the findings about a node: JSON with its name and some lines."""

STEPS = 30
GRADIENT_BYTES = 8_000_000

NUMBERS = 16 * 2**20
"""float32, so 64 MiB."""

_TIMES = 5


def main() -> None:
    """Train on noise; report the median seconds of a step."""
    _write_findings()
    torch.manual_seed(0)
    device = own_device()
    model = nn.Linear(2000, GRADIENT_BYTES // 4 // 2000, bias=False).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(TensorDataset(torch.randn(STEPS, 2000)), global_batch_size=1)
    seconds: list[float] = []
    for _ in session.epochs(1):
        began_s = time.perf_counter()
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x.to(device)).square().mean()
            loss.backward()
            session.step(loss)
            seconds.append(time.perf_counter() - began_s)
            began_s = time.perf_counter()
        session.report(step_s=median(seconds))


def _write_findings() -> None:
    lines = seen(os.environ)
    if Seat.of(os.environ).rank == 0 and (folder := os.environ.get("PILOT_TRAINER_DIR")):
        with trainer_folder.held(Path(folder, "logs"), os.environ["PILOT_TRAINER_UID"]) as logs:
            publish(
                logs / f"{SEEN}{socket.gethostname()}-{os.getpid()}.json",
                json.dumps([socket.gethostname(), *lines]).encode(),
            )


def seen(environment: Mapping[str, str], numbers: int = NUMBERS) -> list[str]:
    """The findings, one line each. Must be called by all training processes of a node."""
    seat, kind = Seat.of(environment), own_device()
    device = kind if kind.type == "cpu" else torch.device(kind.type, seat.rank)
    lines = ["no GPU that torch can use"] if kind is device else [*_gpus(kind), _copies(device, numbers)]
    return [*lines, _between(environment, seat, device, numbers)] if seat.size > 1 else lines


def _gpus(accelerator: torch.device) -> list[str]:
    count, module = torch.accelerator.device_count(), torch.get_device_module(accelerator)
    names = sorted({module.get_device_name(index) for index in range(count)})
    lines = [f"{count} GPU{'s' * (count > 1)} that torch sees: {', '.join(names)}"]
    if accelerator.type == "cuda":  # AMD's GPUs have the same type
        lines.append(f"NCCL (RCCL) {_nccl()}" + (f"; {_reach(count)}" if count > 1 else ""))
    return lines


def _nccl() -> str:
    if not torch.distributed.is_nccl_available():
        return "is not in this torch"
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]  # torch has no types here
    return ".".join(map(str, version))


def _reach(count: int) -> str:
    """Whether the GPUs can read one another's memory."""
    pairs = [(one, other) for one in range(count) for other in range(count) if one != other]
    unlinked = [pair for pair in pairs if not torch.cuda.can_device_access_peer(*pair)]
    if not unlinked:
        return "all reach each other directly"
    return f"{len(unlinked)} of {len(pairs)} pairs do not reach each other directly, for example {unlinked[0]}"


def _copies(device: torch.device, numbers: int) -> str:
    there, here = torch.empty(numbers, device=device), torch.empty(numbers, pin_memory=True)
    out = _bytes_per_s(lambda: there.copy_(here, non_blocking=True), there)
    back = _bytes_per_s(lambda: here.copy_(there, non_blocking=True), there)
    return f"host to GPU {out / 1e9:.1f} GB/s, back {back / 1e9:.1f} GB/s (pinned memory)"


def _between(environment: Mapping[str, str], seat: Seat, device: torch.device, numbers: int) -> str:
    fabric = fabric_of(environment, device)
    fabric = "gloo" if fabric == "shared-memory" else fabric
    group = NodeGroup(seat, Path(f"{environment[STORE]}.doctor"), fabric)
    total = torch.ones(numbers // seat.size * seat.size, device=device)
    own = total[: len(total) // seat.size].clone()
    added = _bytes_per_s(lambda: group.reduce(total, own).wait(), total)
    spread = _bytes_per_s(lambda: group.spread(own, total).wait(), total)
    rates = f"summed at {added / 1e9:.2f} GB/s, gathered at {spread / 1e9:.2f} GB/s"
    return f"{total.nbytes / 2**20:.0f} MiB between {seat.size} processes by {fabric}: {rates}"


def _bytes_per_s(act: Callable[[], object], moved: torch.Tensor) -> float:
    """The median rate, after one warm-up call."""
    seconds = []
    for _ in range(_TIMES + 1):
        began_s = time.perf_counter()
        act()
        if moved.device.type != "cpu":
            torch.accelerator.synchronize(moved.device)
        seconds.append(time.perf_counter() - began_s)
    return moved.nbytes / median(seconds[1:])


if __name__ == "__main__":
    main()
