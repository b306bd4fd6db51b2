"""Hyperparameter search on scikit-learn's digits: each trial is this script with its own parameters.

    pilot study run examples/hpo_digits.py --name digits --trials 12 --metric accuracy:max \
        --param lr=log:1e-3:1 --param width=choice:16,32,64 --param dropout=float:0:0.5

The script knows nothing of the study: its parameters are options, and it reports its metric after each epoch.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import pilot.train

parser = argparse.ArgumentParser(description="A small network on digits.")
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--epochs", type=int, default=20)
arguments = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1400], labels[:1400])

model = nn.Sequential(
    nn.Linear(64, arguments.width),
    nn.ReLU(),
    nn.Dropout(arguments.dropout),
    nn.Linear(arguments.width, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)


def accuracy() -> float:
    """On the held-out images."""
    model.eval()
    with torch.no_grad():
        right = (model(images[1400:]).argmax(1) == labels[1400:]).double().mean().item()
    model.train()
    return right


session = pilot.train.session(model, optimizer)
loader = session.loader(data, global_batch_size=32)
for _ in session.epochs(arguments.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        session.step(loss)
    session.report(accuracy=accuracy())
