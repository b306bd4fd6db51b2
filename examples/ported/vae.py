"""A variational auto-encoder of digits, with a loss summed over the batch, in the style of PyTorch's VAE."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim

import pilot.train


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode, self.mean, self.log_var = nn.Linear(64, 48), nn.Linear(48, 8), nn.Linear(48, 8)
        self.decode = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 64), nn.Sigmoid())

    def forward(self, x):
        hidden = F.relu(self.encode(x))
        mean, log_var = self.mean(hidden), self.log_var(hidden)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.decode(z), mean, log_var


def loss_function(output, x, mean, log_var):
    reconstruction = F.binary_cross_entropy(output, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log_var - mean.pow(2) - log_var.exp())
    return (reconstruction + divergence) / len(x)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(digits, global_batch_size=args.batch_size)
    for epoch in session.epochs(args.epochs):
        for x in loader:
            optimizer.zero_grad()
            output, mean, log_var = model(x)
            loss = loss_function(output, x, mean, log_var)
            loss.backward()
            session.step(loss)
        print(f"epoch {epoch}: loss of a sample {loss.item():.2f}")


if __name__ == "__main__":
    main()
