"""What the workers of a play run: a small regression in float64, with evaluations, paced until the ``gate`` is there.

``python script.py FOLDER EPOCHS WIDTH BALLAST STEP_S``. Each worker enters the network of its node first, and holds
where :mod:`tests.between.holds` has it hold. In the end it saves what it has trained, and what it has left open.
"""

from __future__ import annotations

import ctypes
import faulthandler
import functools
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.between.process_groups import FORM_LIMIT_S, Gloo
from pilot.train.data.order import permutation
from pilot.train.ranks.elastic import Elastic
from pilot.train.ranks.saver import Saver
from pilot.train.ranks.state_sharing import StateSharing
from tests.between.holds import Holder

SAMPLES, BATCH, SEED = 500, 32, 1
EVALUATED_EVERY = 6
_NEW_NETWORK = 0x40000000
_MORE_S = 10.0

METHODS: dict[str, tuple[type, str]] = {
    "sum": (Elastic, "summed"),
    "settle": (Elastic, "settle"),
    "gather": (Elastic, "gather"),
    "start": (Elastic, "_begin"),
    "share": (StateSharing, "share"),
    "connect": (Gloo, "__init__"),
    "abandon": (Gloo, "abandon"),
    "save": (Saver, "start_part"),
    "finish": (Elastic, "finish"),
}
"""Phases that begin with a call of a method."""

SENDING = {"give": ("_give", "_send_between"), "take": ("_take", "_send_between")}
"""The methods of a node that gives its state, and of one that takes it."""


class Held(nn.Module):
    """Passes its input on; its backward pass calls ``hold``."""

    def __init__(self, hold: Callable[[], None]) -> None:
        super().__init__()
        self._hold = hold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda _: self._hold())
        return x


class Task:
    """The model, its optimizer and its data. ``ballast`` numbers make the state larger that newcomers get; ``hold`` is
    called within each backward pass.
    """

    def __init__(self, width: int, ballast: int = 0, hold: Callable[[], None] = lambda: None) -> None:
        torch.manual_seed(0)
        x = torch.randn(SAMPLES, 20)
        self.data = TensorDataset(x, torch.sin(x @ torch.randn(20, 1)))
        self.model = nn.Sequential(nn.Linear(20, width), nn.Tanh(), Held(hold), nn.Linear(width, 1))
        self.model.register_buffer("ballast", torch.zeros(ballast))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2, momentum=0.9)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.model(x), y)

    def saved(self, losses: list[float]) -> dict[str, Any]:
        """Return what has been trained."""
        return {"model": dict(self.model.named_parameters()), "losses": torch.tensor(losses)}


def plain(width: int, epochs: int) -> dict[str, Any]:
    """Return what a plain loop trains on the same batches, in one process."""
    task, losses = Task(width), []
    for epoch in range(epochs):
        for places in torch.from_numpy(permutation(SEED, epoch, SAMPLES)).split(BATCH):
            task.optimizer.zero_grad()
            task.loss(*task.data[places]).backward()
            task.optimizer.step()
        with torch.no_grad():
            losses.append(task.loss(*task.data.tensors).item())
    return task.saved(losses)


def train(folder: Path, epochs: int, task: Task, step_s: float, holder: Holder) -> dict[str, Any]:
    """Train as a worker."""
    session = pilot.train.session(task.model, task.optimizer, seed=SEED)
    loader = session.loader(task.data, global_batch_size=BATCH)
    gate = folder / "gate"

    def measured(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        holder.at("evaluate")
        return {"loss": task.loss(*batch)}

    for _ in session.epochs(epochs):
        for batch in loader:
            holder.at("batch")
            task.optimizer.zero_grad()
            loss = task.loss(*batch)
            loss.backward()
            holder.at("step")
            time.sleep(0.0 if gate.exists() else step_s)
            session.step(loss)
            if session.steps % EVALUATED_EVERY == 0:
                session.evaluate(task.data, measured, batch_size=100)
        holder.at("end of epoch")
        measured_loss = session.evaluate(task.data, measured, batch_size=100)["loss"]
        session.state.setdefault("losses", []).append(measured_loss)
    return task.saved(session.state["losses"])


def opened() -> dict[str, Any]:
    """Return what this process has open: TCP sockets by state, threads by name, and how many descriptors."""
    process = psutil.Process()
    sockets = [one.status for one in process.net_connections("tcp")]
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return {"sockets": sorted(sockets), "threads": sorted(threads), "descriptors": process.num_fds()}


def wait_for_threads(before: list[str]) -> None:
    """Wait until there are no more threads of Python than ``before``: a process group that cannot form takes until its
    time limit, and its thread a moment longer.
    """
    end_s = time.monotonic() + FORM_LIMIT_S + _MORE_S
    name = Path("/proc/self/comm").read_text().strip()
    while opened()["threads"].count(name) > before.count(name) and time.monotonic() < end_s:
        time.sleep(0.01)


def hold_in_methods(holder: Holder) -> None:
    """Let the worker hold where phases begin."""
    methods = [(phase, *method) for phase, method in METHODS.items()]
    methods += [(phase, StateSharing, name) for phase, names in SENDING.items() for name in names]
    for phase, kind, name in methods:
        setattr(kind, name, _held(getattr(kind, name), functools.partial(holder.at, phase)))


def _held(method: Callable[..., Any], hold: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(method)
    def held(*arguments: Any, **options: Any) -> Any:
        hold()
        return method(*arguments, **options)

    return held


def enter(network: Path) -> None:
    """Move this process, which has one thread, to another network."""
    with network.open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"setns {network}")


def main() -> None:
    folder, epochs, width, ballast, step_s = Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5])
    faulthandler.register(signal.SIGUSR1)
    name = Path(os.environ["PILOT_WORKER_SOCKET"]).stem
    if (network := folder / f"network-{name}").exists():
        enter(network.resolve())
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    holder = Holder(folder, name)
    hold_in_methods(holder)
    before = opened()
    task = Task(width, ballast, functools.partial(holder.at, "backward"))
    trained = train(folder, epochs, task, step_s, holder)
    wait_for_threads(before["threads"])
    torch.save({"trained": trained, "open": {**opened(), "before": before["descriptors"]}}, folder / f"saved-{name}")


if __name__ == "__main__":
    main()
