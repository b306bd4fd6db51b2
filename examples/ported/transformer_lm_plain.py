"""A Transformer that predicts the next word over stretches of a text, in the style of PyTorch's word language model."""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Stretches(Dataset):
    """Words i*length to (i+1)*length, and the same one word later."""

    def __init__(self, words, length):
        self.words, self.length = words, length

    def __len__(self):
        return (len(self.words) - 1) // self.length

    def __getitem__(self, i):
        stretch = self.words[i * self.length : (i + 1) * self.length + 1]
        return stretch[:-1], stretch[1:]


class TransformerModel(nn.Module):
    def __init__(self, vocabulary, width=64, heads=4, layers=2, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        place, rate = torch.arange(256).unsqueeze(1), torch.exp(-math.log(10000) * torch.arange(0, width, 2) / width)
        self.register_buffer("places", torch.stack([torch.sin(place * rate), torch.cos(place * rate)], 2).flatten(1))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        hidden = self.embedding(x) * math.sqrt(self.embedding.embedding_dim) + self.places[: x.shape[1]]
        return self.decoder(self.encoder(hidden, mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "LICENSE")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--bptt", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--clip", type=float, default=0.25)
    args = parser.parse_args()

    torch.manual_seed(1111)
    words = args.text.read_text().lower().split()
    numbers = {word: number for number, word in enumerate(sorted(set(words)))}
    data = Stretches(torch.tensor([numbers[word] for word in words]), args.bptt)
    model = TransformerModel(len(numbers))
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        model.train()
        for x, target in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x).flatten(0, 1), target.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, perplexity {math.exp(loss.item()):.1f}")


if __name__ == "__main__":
    main()
