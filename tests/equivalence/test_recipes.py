"""The recipes of ``docs/elastic/data.md`` for scripts without a dataset take few lines, and train on any ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.equivalence.loops import GROWS_AND_SHRINKS
from tests.equivalence.rows import on_ranks
from tests.unit.documented import blocks

MOST_LINES = 6  # with the import
SHARED = """
import torch, torch.nn.functional as F
from torch import nn
import pilot.train

torch.manual_seed(0)
batch_size, steps, max_iters = 8, 9, 9
"""
CONTEXTS = {
    "get_batch": """
class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)
    def forward(self, X, Y):
        logits = self.head(self.embedding(X))
        return logits, F.cross_entropy(logits.flatten(0, 1), Y.flatten())

data = torch.arange(100) % 9

def get_batch(split):
    ix = torch.randint(len(data) - 5, (batch_size,))
    return torch.stack([data[i:i + 4] for i in ix]), torch.stack([data[i + 1:i + 5] for i in ix])

model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
""",
    "torch.randint": """
model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
    "adjacency": """
class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 8), nn.Linear(8, 3)
    def forward(self, x, adjacency):
        return F.log_softmax(adjacency @ self.two(F.relu(adjacency @ self.one(x))), 1)

features, adjacency, labels = torch.randn(12, 4), torch.softmax(torch.randn(12, 12), 1), torch.arange(12) % 3
known = torch.arange(12) < 9
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
""",
}


def recipes() -> Iterator[tuple[str, str]]:
    """(what stands before it, the recipe as a difference)"""
    for block in blocks("diff"):
        if block.page == "elastic/data.md" and "session.iterations" in block.text:
            (before,) = (CONTEXTS[name] for name in CONTEXTS if name in block.text)
            yield SHARED + before, block.text


def test_there_are_three() -> None:
    assert len([*recipes()]) == 3


@pytest.mark.parametrize(("before", "recipe"), [*recipes()], ids=["nanoGPT", "copy task", "GCN"])
def test_a_recipe_takes_few_lines_and_trains(before: str, recipe: str) -> None:
    lines = recipe.splitlines()
    assert 1 + sum(line.startswith("+") for line in lines) <= MOST_LINES
    plain, elastic = (before + "\n".join(line[1:] for line in lines if line[:1] in (sign, " ")) for sign in "-+")

    def run(code: str) -> list[float]:
        names: dict[str, object] = {}
        exec(code, names)
        return [p.sum().item() for p in names["model"].parameters()]  # type: ignore[attr-defined]  # it is a module

    assert run(before) != run(plain)
    results = on_ranks(lambda: run(elastic), 1, GROWS_AND_SHRINKS)
    assert results[0] != run(before)
    if "session.share" not in recipe:
        assert results[0] == run(plain), "all compute the same"
