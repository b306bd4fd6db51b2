"""Digits with a small CNN, a learning rate that decays each epoch, and a test after it, in the style of PyTorch's
MNIST.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import pilot.train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.dropout = nn.Dropout(0.25)
        self.fc1, self.fc2 = nn.Linear(512, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout(torch.flatten(F.max_pool2d(x, 2), 1))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def train(model, loader, optimizer, epoch, session):
    model.train()
    for batch, (data, target) in loader.enumerate():
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        session.step(loss)
        if batch % 10 == 0:
            print(f"epoch {epoch}, batch {batch}: loss {loss.item():.4f}")


def test(model, loader):
    model.eval()
    loss = correct = 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(1) == target).sum().item()
    print(f"test: loss {loss / len(loader.dataset):.4f}, accuracy {correct / len(loader.dataset):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train_set, test_set = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
    test_loader = DataLoader(test_set, batch_size=256)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    session = pilot.train.session(model, optimizer, scheduler, schedule="epoch")
    train_loader = session.loader(train_set, global_batch_size=args.batch_size)
    for epoch in session.epochs(args.epochs):
        train(model, train_loader, optimizer, epoch, session)
        test(model, test_loader)


if __name__ == "__main__":
    main()
