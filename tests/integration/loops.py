"""Real-life loops, for the tests' workers: evaluations, streams, mixed precision, early stops. Paced until the file
``GATE`` exists.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train

SAMPLES = 500
VALIDATION = 203


class Source:
    """A stream of (input, target)."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.epoch))
        return ((self.x[i], self.y[i]) for i in order)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=32)
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--every", type=int, help="evaluate in the middle of an epoch after so many steps, too")
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--bad-step", type=int, help="one rank's loss is not finite in this step")
    parser.add_argument("--stop-after", type=int, help="the last rank calls session.stop() in this epoch")
    parser.add_argument("--break-after", type=int, help="break in this epoch")
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--batch-s", type=float, default=0.0, help="of an evaluation")
    parser.add_argument("--gate", type=Path, default=Path("/"))
    parser.add_argument("--save", type=Path, required=True, help="each rank adds its number")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    x = torch.randn(SAMPLES + VALIDATION, 20)
    y = torch.sin(x @ torch.randn(20, 1))
    model = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Dropout(0.0), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.02)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=7) if arguments.scaler else None
    session = pilot.train.session(model, optimizer, scheduler, schedule="validation", scaler=scaler, seed=1)
    sizes = {"global_batch_size": arguments.global_batch_size, "micro_batch_size": arguments.micro_batch_size}
    training = x[:SAMPLES], y[:SAMPLES]
    stream = arguments.stream
    loader = session.stream(Source(*training), **sizes) if stream else session.loader(TensorDataset(*training), **sizes)
    validation = TensorDataset(x[SAMPLES:], y[SAMPLES:])

    def pace(seconds: float) -> None:
        if not arguments.gate.exists():
            time.sleep(seconds)

    def measure(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        assert not model.training
        arguments.save.with_name(f"evaluates-{session.steps}").touch()
        pace(arguments.batch_s)
        error = model(batch[0]) - batch[1]
        return {"mse": error.square().mean(), "mae": error.abs().mean()}

    def evaluate() -> float:
        means = session.evaluate(validation, measure, batch_size=4)
        session.state.setdefault("history", []).append([session.steps, means["mse"], means["mae"]])
        return means["mse"]

    for epoch in session.epochs(arguments.epochs):
        for inputs, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), target)
            if session.steps == arguments.bad_step and session.rank == session.size - 1:
                loss = loss * torch.inf
            (scaler.scale(loss) if scaler is not None else loss).backward()
            pace(arguments.step_s)
            session.clip_grad_norm(0.5)
            stepped = session.step(loss)
            if stepped and arguments.every and session.steps % arguments.every == 0:
                evaluate()
        session.state["passes"] = session.state.get("passes", 0) + 1
        if epoch == arguments.stop_after and session.rank == session.size - 1:
            session.stop()
        if epoch == arguments.break_after:
            break
        session.report(validation=evaluate())
    rate = optimizer.param_groups[0]["lr"]
    scale = scaler.state_dict() if scaler is not None else None
    result = {"model": model.state_dict(), "state": session.state, "lr": rate, "scale": scale}
    torch.save(result, arguments.save.with_suffix(f".{session.rank}"))


if __name__ == "__main__":
    main()
