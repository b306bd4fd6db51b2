"""A small CNN on scikit-learn's digits: digits_cnn_plain.py in plain PyTorch, digits_cnn.py its elastic version."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import pilot.train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.02)
arguments = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1500], labels[:1500])

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(512, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr, momentum=0.9)


def accuracy() -> float:
    with torch.no_grad():
        return (model(images[1500:]).argmax(1) == labels[1500:]).double().mean().item()


session = pilot.train.session(model, optimizer)
loader = session.loader(data, global_batch_size=arguments.batch_size)
for epoch in session.epochs(arguments.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        session.step(loss)
    print(f"epoch {epoch}: accuracy {accuracy():.4f}")
