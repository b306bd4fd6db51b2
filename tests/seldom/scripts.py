"""Scripts of workers in tests of rounds: ``scripts.py FOLDER NAME``. They end by saving parameters and ledger."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.train.session import Session

SAMPLES, BATCH = 403, 8
IS_SLOW = os.environ.get("PILOT_WORKER_SOCKET", "").endswith("n1.sock")


def session(model: nn.Module, every: int, trained: nn.Module | None = None, **track: nn.Module) -> tuple[Session, Any]:
    """Return a session with Adam, and its loader."""
    optimizer = torch.optim.Adam((trained or model).parameters(), lr=1e-2)
    x = torch.randn(SAMPLES, 4)
    its = pilot.train.session(model, optimizer, sync=pilot.train.DiLoCo(every=every))
    for name, one in track.items():
        its.track(name, one)
    return its, its.loader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=BATCH)


def step(its: Session, model: nn.Module, batch: list[torch.Tensor], pause_s: float = 0.0) -> None:
    """Do an inner step."""
    model.zero_grad()
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    loss.backward()
    its.step(loss)
    time.sleep(pause_s)


def iterations() -> tuple[Session, nn.Module]:
    """A loop of iterations, which is over on the slow node when the other one has done the last step."""
    model = nn.Linear(4, 1)
    its, loader = session(model, every=10)
    for _ in its.iterations(33):
        for batch in loader:
            step(its, model, batch, 0.05 if IS_SLOW else 0.005)
    return its, model


def unfreezing() -> tuple[Session, nn.Module]:
    """From the second epoch on more is trained, in one long round."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model[0].requires_grad_(False)
    its, loader = session(model, every=1000)
    for epoch in its.epochs(3):
        if epoch == 1:
            model[0].requires_grad_(True)
        for batch in loader:
            step(its, model, batch, 0.1 if epoch == 1 else 0.0)
    return its, model


def measuring() -> tuple[Session, nn.Module]:
    """Its body asks for the loader's length between a step and an average's update."""
    model = nn.Linear(4, 1)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    its, loader = session(model, every=5, average=average)
    for _ in its.epochs(3):
        for batch in loader:
            step(its, model, batch)
            assert its.rank or len(loader)
            average.update_parameters(model)
    return its, nn.ModuleList([model, average])


def momentum_encoder() -> tuple[Session, nn.Module]:
    """It changes frozen parameters, which nodes do not average."""
    model = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1))
    frozen = copy.deepcopy(model[0]).requires_grad_(False)
    model.add_module("2", nn.Identity())
    model[2].frozen = frozen
    its, loader = session(model, every=5, trained=nn.Sequential(model[0], model[1]))
    for _ in its.epochs(6):
        for batch in loader:
            step(its, model, batch)
            with torch.no_grad():
                frozen.weight.mul_(0.9).add_(model[0].weight, alpha=0.1)
    return its, model


def long() -> tuple[Session, nn.Module]:
    """It trains for ever, with Adam's steps in its log."""
    model = nn.Linear(4, 1)
    its, loader = session(model, every=10)
    for _ in its.epochs(100_000):
        for batch in loader:
            step(its, model, batch, 0.01)
            print("step", its.steps, repr(float(model.weight.detach().sum())), flush=True)
    return its, model


SCRIPTS: dict[str, Callable[[], tuple[Session, nn.Module]]] = {
    one.__name__: one for one in (iterations, unfreezing, measuring, momentum_encoder, long)
}


def values(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what the model has."""
    yield from ((name, one.clone()) for name, one in model.state_dict().items())


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    ended, trained = SCRIPTS[sys.argv[2]]()
    rows = [list(row) for row in ended._training.ledger.rows]
    torch.save({"rows": rows, "values": dict(values(trained))}, Path(sys.argv[1], f"end-{ended.rank}"))
