"""A small GPT on the characters of a text file (by default the project's licence), as a stream of windows.

python examples/tiny_gpt.py --epochs 1
pilot submit examples/tiny_gpt.py --epochs 5
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import pilot.train


class Windows(torch.utils.data.IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Stretches of ``length`` characters, each with its target: the same, one character later. Shuffled by epoch."""

    def __init__(self, text: str, length: int, stride: int) -> None:
        self.alphabet = sorted(set(text))
        self._codes = torch.tensor([self.alphabet.index(character) for character in text])
        self._length, self._stride = length, stride
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self.from_cursor(0)

    def from_cursor(self, cursor: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        starts = torch.arange(0, len(self._codes) - self._length, self._stride)
        order = torch.randperm(len(starts), generator=torch.Generator().manual_seed(self._epoch))
        for start in starts[order[cursor:]]:
            window = self._codes[start : start + self._length + 1]
            yield window[:-1], window[1:]


class TinyGPT(nn.Module):
    """A decoder of a few layers; the output layer shares its weights with the embedding."""

    def __init__(self, alphabet: int, length: int, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(alphabet, width)
        self.place = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, alphabet, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        self.out.weight = self.token.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        hidden = self.token(x) + self.place(torch.arange(length, device=x.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.out(self.blocks(hidden, mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--global-batch-size", type=int, default=64)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[1] / "LICENSE")
    parser.add_argument("--length", type=int, default=32)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = Windows(arguments.text.read_text(), arguments.length, stride=4)
    model = TinyGPT(len(data.alphabet), arguments.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    session = pilot.train.session(model, optimizer)
    loader = session.stream(data, global_batch_size=arguments.global_batch_size, micro_batch_size=32)
    for epoch in session.epochs(arguments.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            session.clip_grad_norm(1.0)
            session.step(loss)
        print(f"epoch {epoch}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
