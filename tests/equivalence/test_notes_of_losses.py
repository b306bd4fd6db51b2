"""A script is told of a loss that is no mean over the samples of its batch, or that compares them with one another; and
not of others. (How far off they are: the rows of :mod:`tests.equivalence.topics.losses`.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, mse_loss, normalize
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import TensorDataset

from tests.equivalence.loops import BATCH, DATA, fresh, session
from tests.equivalence.rows import SAMPLES

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
X = DATA.tensors[0]
CLASSES = torch.arange(SAMPLES) % 4
SOME_IGNORED = torch.where(CLASSES == 1, -100, CLASSES)
WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
NO_MEAN = "samples, so that this trains otherwise on another number of nodes: "


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))


def outputs_and_more(output: torch.Tensor, _y: torch.Tensor) -> torch.Tensor:
    """As of a variational autoencoder."""
    return cross_entropy(output, CLASSES[: len(output)], reduction="sum") - 0.5 * output.square().sum()


def masked(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    mask = (y > 0).double()
    return (cross_entropy(output, y, reduction="none") * mask).sum() / mask.sum().clamp(min=1)


def overlap(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As Dice's."""
    share = output[:, 0].sigmoid()
    return 1 - 2 * (share * y).sum() / (share.sum() + y.sum())


def contrastive(output: torch.Tensor, _y: torch.Tensor) -> torch.Tensor:
    features = normalize(output, dim=1)
    return cross_entropy(features @ features.T / 0.1, torch.arange(len(output)))


def mined(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """As of triplets by the hardest in the batch."""
    distances = (output[:, None] - output[None]).square().sum(-1)
    same = y[:, None] == y[None]
    return (distances * same).max(1)[0].mean() - distances.masked_fill(same, 9.0).min(1)[0].mean()


def told(
    loss_of: Loss,
    capsys: pytest.CaptureFixture[str],
    labels: torch.Tensor = CLASSES,
    model: nn.Module | None = None,
    *,
    weight: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **batching: Any,
) -> list[str]:
    model = fresh(classifier) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(TensorDataset(X, labels), **(batching or {"global_batch_size": BATCH}))
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            ours.step(loss, weight=None if weight is None else weight(y))
    return [line for line in capsys.readouterr().err.splitlines() if NO_MEAN in line]


@pytest.mark.parametrize(
    ("loss_of", "words"),
    [
        (lambda output, y: cross_entropy(output, y, reduction="sum"), "a sum over the samples of its batch (NllLoss)"),
        (lambda output, y: (output[:, 0] - y).square().sum(), "a sum over the samples of its batch (Sum)"),
        (lambda output, _: (output - 1).square().sum(dim=(0, 1)), "a sum over the samples of its batch (Sum)"),
        (outputs_and_more, "a sum over the samples of its batch (NllLoss)"),
        (nn.CrossEntropyLoss(weight=WEIGHTS), "a mean by class weights"),
        (masked, "a sum over its batch that is divided by another one"),
        (lambda output, y: cross_entropy(output[y > 0], y[y > 0]), "a mean over a part of its batch that is selected"),
        (lambda output, y: output[:, 0].masked_select(y > 0).square().mean(), "a mean over a part of its batch"),
        (lambda output, y: cross_entropy(output, y).sqrt(), "no mean over its samples (Sqrt)"),
        (lambda output, _: torch.linalg.vector_norm(output - 1), "no mean over its samples (LinalgVectorNorm)"),
        (lambda output, _: (output.mean() - 1) ** 2, "no mean over its samples (Pow)"),
        (lambda output, y: cross_entropy(output, y, reduction="none").topk(2)[0].mean(), "one of the largest"),
        (overlap, "no mean over its samples (Div)"),
        (contrastive, "one that compares the samples of its batch with one another (Mm, contrastive?)"),
        (mined, "with one another (Sub, contrastive?)"),
        (lambda output, _: cosine_similarity(output[:, None], output[None], dim=-1).mean(), "with one another ("),
        (lambda output, _: torch.cdist(output, output).mean(), "with one another (Cdist, contrastive?)"),
    ],
)
def test_losses_that_are_no_means(loss_of: Loss, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(loss_of, capsys)
    assert words in line


def test_targets_that_are_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(cross_entropy, capsys, SOME_IGNORED)
    assert "targets that are not -100" in line
    assert line.endswith("it is exact on any number of nodes: weight=(y != -100).sum()")


def test_where_no_weight_can_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    model = fresh(classifier)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session({"only": model}, {"only": optimizer})
    loader = ours.loader(TensorDataset(X, CLASSES), global_batch_size=BATCH)
    for _ in ours.epochs(1):
        for x, y in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y, weight=WEIGHTS)
            loss.backward()
            ours.step(loss, "only")
    assert "take the mean over all samples (reduction='none', and then .mean())" in capsys.readouterr().err


@pytest.mark.parametrize(
    "loss_of",
    [
        cross_entropy,
        nn.CrossEntropyLoss(label_smoothing=0.1),
        lambda output, y: cross_entropy(output, y, reduction="sum") / len(y),
        lambda output, y: nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none")(output, y).mean(),
        lambda output, y: cross_entropy(output, y) + 0.1 * output.square().sum(1).mean(),
        lambda output, _: kl_div(output.log_softmax(1), torch.full_like(output, 0.25), reduction="batchmean"),
        lambda output, _: (output - 1).mean(0).sum(),
        lambda output, y: torch.stack([output[:, at].mean() for at in range(4)]).sum() + cross_entropy(output, y),
        lambda output, y: cross_entropy(output[torch.randperm(len(y))], y),
        lambda output, y: cross_entropy(output, y).unsqueeze(0).expand(1).sum().clamp(max=9.0),
        lambda output, _: output.topk(2)[0].mean(),
        lambda output, _: output.sort(dim=0)[0].square().mean(),
    ],
)
def test_means(loss_of: Loss, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(loss_of, capsys) == []


class Recurrent(nn.Module):
    """Its layers without biases have a multiple of the batch's samples as features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again = nn.Linear(3, 2 * BATCH, bias=False), nn.Linear(2 * BATCH, 2 * BATCH, bias=False)
        weight_norm(self.again)
        self.last = nn.Parameter(torch.ones(2 * BATCH, BATCH))
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.again(self.again(self.first(x)))
        return torch.cdist(hidden @ self.last, self.last)


def test_an_input_that_needs_a_gradient(capsys: pytest.CaptureFixture[str]) -> None:
    class Needs(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.requires_grad_())

    def needs() -> nn.Module:
        return Needs(3, 4)

    (line,) = told(lambda output, _: output.square().sum(), capsys, model=fresh(needs))
    assert "a sum over the samples" in line


class Filled(nn.Module):
    """Its outputs are put in one place after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(len(x), 2 * BATCH, 4, dtype=x.dtype)
        for at in range(2 * BATCH):
            found[:, at] = self.layer(x)
        return found.mean(1)


def test_slices_are_no_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(lambda output, _: output.square().mean(), capsys, model=fresh(Filled)) == []


def test_parameters_are_no_samples(capsys: pytest.CaptureFixture[str]) -> None:
    def loss_of(output: torch.Tensor, _y: torch.Tensor) -> torch.Tensor:
        penalty = torch.stack([p.square().sum() for p in model.parameters()]).sum()
        return output.square().mean() * model.scale.exp() - model.scale + 0.1 * penalty.sqrt()

    model = fresh(Recurrent)
    assert told(loss_of, capsys, model=model) == []


def test_with_a_weight(capsys: pytest.CaptureFixture[str]) -> None:
    loss_of = nn.CrossEntropyLoss(weight=WEIGHTS)
    assert told(loss_of, capsys, weight=lambda y: WEIGHTS[y].sum()) == []


@pytest.mark.parametrize("loss_of", [contrastive, nn.CrossEntropyLoss(weight=WEIGHTS)])
def test_a_batch_of_each_node(loss_of: Loss, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not divided."""
    assert told(loss_of, capsys, batch_size=BATCH) == []


def test_a_sum_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(
        lambda output, _: mse_loss(output, output * 2, reduction="sum"), capsys, batch_size=BATCH, micro_batch_size=3
    )
