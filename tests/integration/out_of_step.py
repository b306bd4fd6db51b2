"""A script of which one rank does what the others do not, which its code does not show."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("does", choices=["evaluate", "stop", "evaluate after the loop"])
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--step", type=int, default=3)
    parser.add_argument("--models", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    models = {f"m{number}": nn.Linear(4, 1) for number in range(arguments.models)}
    optimizers = {name: torch.optim.SGD(model.parameters()) for name, model in models.items()}
    session = pilot.train.session(models, optimizers, seed=0)
    data = TensorDataset(torch.ones(240, 4))
    loader = session.loader(data, global_batch_size=12)

    def is_it() -> bool:
        return session.rank == arguments.rank and session.steps == arguments.step

    def evaluate() -> dict[str, float]:
        return session.evaluate(data, lambda batch: {"loss": models["m0"](batch[0]).square().mean()})

    for _ in session.epochs(2):
        for (x,) in loader:
            for name, model in models.items():
                optimizers[name].zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                session.step(loss, name)
            if is_it():
                if arguments.does == "stop":
                    session.stop()
                    break
                if arguments.does == "evaluate":
                    evaluate()
    if arguments.does == "evaluate after the loop" and session.rank == arguments.rank:
        print("evaluated", len(evaluate()), flush=True)


if __name__ == "__main__":
    main()
