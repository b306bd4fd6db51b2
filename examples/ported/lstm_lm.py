"""An LSTM that predicts the next word and carries its hidden state along the text, which is cut into as many columns as
the batch has rows, in the style of PyTorch's word language model.
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import Dataset

import pilot.train


class Columns(Dataset):
    """The text in ``columns`` columns: sample i is the next ``bptt`` words of column i % columns."""

    def __init__(self, words, columns, bptt):
        rows = (len(words) - 1) // columns
        self.columns, self.bptt, self.count = columns, bptt, rows // bptt
        self.x, self.target = (words[shift : shift + rows * columns].view(columns, rows) for shift in (0, 1))

    def __len__(self):
        return self.count * self.columns

    def __getitem__(self, i):
        row, column = divmod(i, self.columns)
        here = slice(row * self.bptt, (row + 1) * self.bptt)
        return self.x[column, here], self.target[column, here]


class RNNModel(nn.Module):
    def __init__(self, vocabulary, width=64, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, layers, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, x, hidden):
        output, hidden = self.rnn(self.embedding(x), hidden)
        return self.decoder(output), tuple(h.detach() for h in hidden)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[2] / "LICENSE")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--bptt", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2.0)
    parser.add_argument("--clip", type=float, default=0.25)
    args = parser.parse_args()

    torch.manual_seed(1111)
    words = args.text.read_text().lower().split()
    numbers = {word: number for number, word in enumerate(sorted(set(words)))}
    data = Columns(torch.tensor([numbers[word] for word in words]), args.batch_size, args.bptt)
    model = RNNModel(len(numbers))
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    session = pilot.train.session(model, optimizer)
    loader = session.loader(data, global_batch_size=args.batch_size, shuffle=False)
    for epoch in session.epochs(args.epochs):
        seat = None
        for x, target in loader:
            if seat != (session.rank, len(x)):  # from here on this rank has different columns
                seat, hidden = (session.rank, len(x)), None
            optimizer.zero_grad()
            output, hidden = model(x, hidden)
            loss = F.cross_entropy(output.flatten(0, 1), target.flatten())
            loss.backward()
            session.clip_grad_norm(args.clip)
            session.step(loss)
        print(f"epoch {epoch}: loss {loss.item():.3f}, perplexity {math.exp(loss.item()):.1f}")


if __name__ == "__main__":
    main()
