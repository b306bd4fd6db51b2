"""A polynomial fitted by LBFGS, which evaluates the loss several times per step, in the style of PyTorch's time
sequence prediction.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=15)
    args = parser.parse_args()

    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 256).unsqueeze(1)
    powers, y = torch.cat([x, x**2, x**3], 1), 3 * x**3 - x + 0.5
    model, criterion = nn.Linear(3, 1), nn.MSELoss()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8)
    session = pilot.train.session(
        model, optimizer
    )  # refused here: LBFGS decides itself how often it sums the gradients
    loader = session.loader(TensorDataset(powers, y), global_batch_size=256)
    for epoch in session.epochs(args.epochs):
        for data, target in loader:

            def closure(data=data, target=target):
                optimizer.zero_grad()
                loss = criterion(model(data), target)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
        print(f"epoch {epoch}: loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
