"""A small GPT trained by iteration: random crops of a text, with a learning rate set by hand and micro-batches.

python examples/char_gpt.py --iterations 200
pilot submit examples/char_gpt.py --iterations 2000
"""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

import pilot.train


class Crops(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """The ``length`` characters at each place, and the target: the same, one character later."""

    def __init__(self, codes: torch.Tensor, length: int) -> None:
        self._codes, self._length = codes, length

    def __len__(self) -> int:
        return len(self._codes) - self._length

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        crop = self._codes[place : place + self._length + 1]
        return crop[:-1], crop[1:]


class CharGPT(nn.Module):
    """A decoder of a few layers."""

    def __init__(self, alphabet: int, length: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(alphabet, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, alphabet)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.token(x) + self.place(torch.arange(x.shape[1]))
        return self.out(self.blocks(hidden, mask, is_causal=True))


def learning_rate(iteration: int, iterations: int, warmup: int = 20) -> float:
    """Linear warm-up, then cosine decay."""
    if iteration < warmup:
        return 3e-3 * (iteration + 1) / warmup
    return 3e-4 + 2.7e-3 * (1 + math.cos(math.pi * (iteration - warmup) / max(1, iterations - warmup))) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32, help="crops in an iteration, over all nodes")
    parser.add_argument("--micro", type=int, default=16, help="crops that a process computes with at once")
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[1] / "LICENSE")
    parser.add_argument("--length", type=int, default=32)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    text = arguments.text.read_text()
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(character) for character in text])
    split = len(codes) * 9 // 10
    train, validation = Crops(codes[:split], arguments.length), Crops(codes[split:], arguments.length)

    model = CharGPT(len(alphabet), arguments.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

    session = pilot.train.session(model, optimizer)
    batches = {"global_batch_size": arguments.batch, "micro_batch_size": arguments.micro}
    loader = session.loader(train, **batches, replacement=True)
    for iteration in session.iterations(arguments.iterations):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(iteration, arguments.iterations)
        if iteration % 100 == 0:
            means = session.evaluate(validation, lambda batch: {"validation_loss": loss_of(batch)})
            session.report(**means)
            print(f"iteration {iteration}: validation loss {means['validation_loss']:.3f}")
        for batch in loader:
            loss = loss_of(batch)
            loss.backward()
            session.clip_grad_norm(1.0)
            session.step(loss)
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
