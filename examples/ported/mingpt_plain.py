"""A GPT that learns to sort, driven by a Trainer that draws samples with replacement and calls back after each batch:
in the style of minGPT.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler

LENGTH, DIGITS = 6, 3


class SortDataset(Dataset):
    """Six digits, then the same six sorted; only the sorted ones are predicted."""

    def __len__(self):
        return 10000

    def __getitem__(self, i):
        digits = torch.randint(DIGITS, (LENGTH,), generator=torch.Generator().manual_seed(i))
        both = torch.cat([digits, digits.sort().values])
        target = both[1:].clone()
        target[: LENGTH - 1] = -1
        return both[:-1], target


class GPT(nn.Module):
    def __init__(self, width=48, heads=3, layers=3):
        super().__init__()
        self.token, self.place = nn.Embedding(DIGITS, width), nn.Embedding(2 * LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, DIGITS)

    def forward(self, x, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.blocks(self.token(x) + self.place(torch.arange(x.shape[1])), mask, is_causal=True)
        logits = self.head(hidden)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Trainer:
    def __init__(self, config, model, train_dataset):
        self.config, self.model, self.train_dataset = config, model, train_dataset
        self.callbacks = {}
        self.iter_num, self.iter_dt = 0, 0.0

    def add_callback(self, onevent, callback):
        self.callbacks.setdefault(onevent, []).append(callback)

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        model, config = self.model, self.config
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
        train_loader = DataLoader(
            self.train_dataset,
            sampler=RandomSampler(self.train_dataset, replacement=True, num_samples=int(1e10)),
            batch_size=config.batch_size,
        )
        model.train()
        iter_time = time.monotonic()
        data_iter = iter(train_loader)
        for self.iter_num in range(config.max_iters):
            x, y = next(data_iter)
            _, self.loss = model(x, y)
            model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_norm_clip)
            self.optimizer.step()
            self.trigger_callbacks("on_batch_end")
            now = time.monotonic()
            self.iter_dt, iter_time = now - iter_time, now


def batch_end(trainer):
    if trainer.iter_num % 50 == 0:
        print(f"iter {trainer.iter_num}: {trainer.iter_dt * 1000:.1f} ms, loss {trainer.loss.item():.5f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-iters", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--grad-norm-clip", type=float, default=1.0)
    torch.manual_seed(3407)
    trainer = Trainer(parser.parse_args(), GPT(), SortDataset())
    trainer.add_callback("on_batch_end", batch_end)
    trainer.run()


if __name__ == "__main__":
    main()
