"""A regression in float64 with a fixed global batch: the same parameters on any number of nodes, through any rescale.

    python examples/regression.py --epochs 5 --save out.pt
    pilot submit examples/regression.py --epochs 5

Gradient sums differ in their last bits with the number of nodes; over a whole run the effect is below 1e-12.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--global-batch-size", type=int, default=96)
    parser.add_argument("--save", help="where rank 0 writes the parameters in the end")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    digits = load_digits()
    pixels = torch.tensor(digits.data) / 16
    target = torch.tensor(digits.target, dtype=torch.float64).unsqueeze(1)

    model = nn.Sequential(nn.Linear(64, 48), nn.Tanh(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    session = pilot.train.session(model, optimizer, scheduler, schedule="step", seed=1)
    loader = session.loader(TensorDataset(pixels, target), global_batch_size=arguments.global_batch_size)
    for _ in session.epochs(arguments.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            session.step(loss)
        error = nn.functional.mse_loss(model(pixels), target).sqrt().item()
        session.report(rmse=error)
    if arguments.save and session.rank == 0:
        torch.save(model.state_dict(), arguments.save)
    print(f"{session.steps} steps, rmse {error:.4f}")


if __name__ == "__main__":
    main()
