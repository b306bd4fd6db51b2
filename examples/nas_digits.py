"""Architecture search on scikit-learn's digits, in the style of NAS-Bench-201 (Dong and Yang, ICLR 2020).

    pilot study run examples/nas_digits.py --name cells --trials 12 --metric accuracy:max --rungs 1,3 \
        --space examples/nas_space.py

A cell has four nodes; each of its six edges, from a node to a later one, is one of five operations. A network is a
stem, two cells with pooling in between, and a linear layer. The edges are this script's options, so a trial is a cell.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import pilot.train

EDGES = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
CHANNELS = 8


class Nothing(nn.Module):
    """No edge."""

    def forward(self, x):
        return torch.zeros_like(x)


def convolution(size):
    return nn.Sequential(nn.ReLU(), nn.Conv2d(CHANNELS, CHANNELS, size, padding=size // 2), nn.GroupNorm(2, CHANNELS))


OPERATIONS = {
    "none": Nothing,
    "skip": nn.Identity,
    "conv1x1": lambda: convolution(1),
    "conv3x3": lambda: convolution(3),
    "pool3x3": lambda: nn.AvgPool2d(3, stride=1, padding=1),
}


class Cell(nn.Module):
    """Each node is the sum of its incoming edges."""

    def __init__(self, names):
        super().__init__()
        self.edges = nn.ModuleList(OPERATIONS[name]() for name in names)

    def forward(self, x):
        nodes = [x]
        for node in range(1, 4):
            edges = zip(EDGES, self.edges, strict=True)
            nodes.append(sum(edge(nodes[start]) for (start, end), edge in edges if end == node))
        return nodes[-1]


parser = argparse.ArgumentParser(description="A network of cells on digits.")
for edge in range(6):
    parser.add_argument(f"--edge{edge}", choices=OPERATIONS, default="conv3x3")
parser.add_argument("--epochs", type=int, default=9)
arguments = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1400], labels[:1400])

names = [getattr(arguments, f"edge{edge}") for edge in range(6)]
model = nn.Sequential(
    nn.Conv2d(1, CHANNELS, 3, padding=1),
    Cell(names),
    nn.AvgPool2d(2),
    Cell(names),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(CHANNELS, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


def accuracy():
    """On the held-out images."""
    with torch.no_grad():
        return (model(images[1400:]).argmax(1) == labels[1400:]).double().mean().item()


session = pilot.train.session(model, optimizer)
loader = session.loader(data, global_batch_size=64)
for _ in session.epochs(arguments.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        session.step(loss)
    session.report(accuracy=accuracy())
