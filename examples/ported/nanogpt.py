"""A small GPT trained by iteration: random crops, accumulation, autocast to bfloat16, cosine decay, as in nanoGPT."""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import pilot.train


class GPT(nn.Module):
    def __init__(self, vocabulary, block_size, width=64, heads=4, layers=2):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(block_size, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.blocks(self.token(x) + self.place(torch.arange(x.shape[1])), mask, is_causal=True)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def get_lr(it, args):
    """Linear warm-up, cosine decay, then constant at its minimum."""
    if it < args.warmup_iters:
        return args.learning_rate * (it + 1) / (args.warmup_iters + 1)
    progress = min(1.0, (it - args.warmup_iters) / max(1, args.max_iters - args.warmup_iters))
    return args.learning_rate * (0.1 + 0.9 * (1 + math.cos(math.pi * progress)) / 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "LICENSE")
    parser.add_argument("--max-iters", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--warmup-iters", type=int, default=20)
    args = parser.parse_args()

    torch.manual_seed(1337)
    text = args.text.read_text()
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(character) for character in text])
    crops = data.unfold(0, args.block_size + 1, 1)
    model = GPT(len(alphabet), args.block_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)

    session = pilot.train.session(model, optimizer)
    batching = {"global_batch_size": args.batch_size * args.gradient_accumulation_steps}
    loader = session.loader(crops, **batching, micro_batch_size=args.batch_size, replacement=True)

    for it in session.iterations(args.max_iters):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(it, args)
        for batch in loader:
            x, y = batch[:, :-1], batch[:, 1:]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(x, y)
            loss.backward()
            session.clip_grad_norm(1.0)
            session.step(loss)
        optimizer.zero_grad(set_to_none=True)
        if it % 20 == 0:
            print(f"iter {it}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
