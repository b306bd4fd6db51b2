"""A small MLP on scikit-learn's digits: Adam, a schedule by epochs, gradient clipping, validation on all nodes."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn

import pilot.train

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--lr", type=float, default=0.002)
arguments = parser.parse_args()

torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
labels = torch.tensor(digits.target)
data = torch.utils.data.TensorDataset(images[:1500], labels[:1500])
validation = torch.utils.data.TensorDataset(images[1500:], labels[1500:])

model = nn.Sequential(
    nn.Flatten(),
    nn.Linear(64, 128),
    nn.ReLU(),
    nn.Linear(128, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=arguments.lr)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.epochs)


def measures(batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    output = model(batch[0])
    return {
        "validation_loss": nn.functional.cross_entropy(output, batch[1]),
        "accuracy": (output.argmax(1) == batch[1]).double().mean(),
    }


session = pilot.train.session(model, optimizer, scheduler, schedule="epoch")
loader = session.loader(data, global_batch_size=arguments.batch_size)
for _ in session.epochs(arguments.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        session.clip_grad_norm(1.0)
        session.step(loss)
    means = session.evaluate(validation, measures, batch_size=64)
    session.state["best"] = max(means["accuracy"], session.state.get("best", 0.0))  # survives rescales and restarts
    session.report(best=session.state["best"], **means)
print(f"best accuracy {session.state['best']:.4f}")
