"""What the workers of the data plane's tests run: a small regression, paced until the file ``GATE`` exists."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train

SAMPLES = 500


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--micro-batch-size", type=int)
    parser.add_argument("--loaders", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--wire-dtype")
    parser.add_argument("--gate", type=Path, default=Path("/"))
    parser.add_argument("--save", type=Path, required=True, help="each rank adds its number")
    parser.add_argument("--log-to")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.set_default_dtype(getattr(torch, arguments.dtype))
    x = torch.randn(SAMPLES, 20)
    data = TensorDataset(x, torch.sin(x @ torch.randn(20, 1)))
    model = nn.Sequential(nn.Linear(20, arguments.width), nn.Tanh(), nn.Linear(arguments.width, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    session = pilot.train.session(
        model,
        optimizer,
        scheduler,
        schedule="step",
        seed=1,
        lr_rule="linear",
        wire_dtype=arguments.wire_dtype,
    )
    if arguments.log_to:
        session.log_to("tensorboard", arguments.log_to)
    loader = session.loader(
        data,
        arguments.batch_size,
        global_batch_size=arguments.global_batch_size,
        micro_batch_size=arguments.micro_batch_size,
        num_workers=arguments.loaders,
    )
    for _ in session.epochs(arguments.epochs):
        for inputs, target in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), target)
            loss.backward()
            if not arguments.gate.exists():
                time.sleep(arguments.step_s)
            session.clip_grad_norm(0.5)
            session.step(loss)
        session.state["passes"] = session.state.get("passes", 0) + 1
        session.report(passes=session.state["passes"])
    torch.save({"model": model.state_dict(), "state": session.state}, arguments.save.with_suffix(f".{session.rank}"))


if __name__ == "__main__":
    main()
