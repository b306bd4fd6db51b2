"""Digits read row by row by an LSTM, in the style of PyTorch's MNIST with an RNN."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset

import pilot.train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(input_size=8, hidden_size=64, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, rows):
        output, _ = self.rnn(rows)
        return F.log_softmax(self.fc2(F.relu(self.fc1(self.norm(output[:, -1])))), dim=1)


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        return (model(images).argmax(1) == labels).double().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.003)
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = Net()
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(TensorDataset(images[:1500], labels[:1500]), global_batch_size=args.batch_size)
    for epoch in session.epochs(args.epochs):
        model.train()
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            session.step(loss)
        print(f"epoch {epoch}: accuracy {accuracy(model, images[1500:], labels[1500:]):.4f}")


if __name__ == "__main__":
    main()
