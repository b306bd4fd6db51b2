"""An encoder that knows the digits 0 to 4 learns all ten: a new head with a high learning rate, the encoder with a low
one, warm-up by step, evaluation after each epoch, and the best result is kept, in the style of a fine-tuning loop
without a Trainer.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

import pilot.train


def pretrained(images, labels):
    """Stands in for a download: an encoder trained on the digits below 5."""
    encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    model, known = nn.Sequential(encoder, nn.Linear(32, 5)), labels < 5
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        F.cross_entropy(model(images[known]), labels[known]).backward()
        optimizer.step()
        optimizer.zero_grad()
    return encoder


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    args = parser.parse_args()

    torch.manual_seed(42)
    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train_set, eval_set = TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])
    encoder, head = pretrained(images[:1500], labels[:1500]), nn.Linear(32, 10)
    encoder[0].requires_grad_(False)
    model = nn.Sequential(encoder, head)
    groups = [{"params": encoder[2].parameters(), "lr": args.learning_rate / 10}, {"params": head.parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=args.learning_rate)
    eval_loader = DataLoader(eval_set, batch_size=256)
    steps = args.epochs * -(-len(train_set) // args.batch_size)
    scheduler = LambdaLR(optimizer, lambda step: min(step / (0.1 * steps), (steps - step) / (0.9 * steps)))
    session = pilot.train.session(model, optimizer, scheduler, schedule="step")
    train_loader = session.loader(train_set, global_batch_size=args.batch_size)
    for epoch in session.epochs(args.epochs):
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            session.clip_grad_norm(1.0)
            session.step(loss)
            optimizer.zero_grad()
        with torch.no_grad():
            correct = sum((model(x).argmax(1) == y).sum().item() for x, y in eval_loader)
        best = session.state["best"] = max(session.state.get("best", 0.0), correct / len(eval_set))
        print(f"epoch {epoch}: accuracy {correct / len(eval_set):.4f}, best {best:.4f}")


if __name__ == "__main__":
    main()
