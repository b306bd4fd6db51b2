"""A script is told of what it computes with the model at an epoch's beginning and uses in its steps, because a node
that joins computes it with another model; and what to do instead trains as one undisturbed process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, fresh, mlp, session
from tests.equivalence.rows import SAMPLES, on_ranks

X, Y = DATA.tensors
Step = Callable[[torch.Tensor], None]
Script = Callable[[Any, nn.Module, Any, Step], None]


class Labelled(Dataset[Any]):
    """Its labels are the script's."""

    def __init__(self) -> None:
        self.labels = [torch.zeros(1, dtype=torch.float64)] * SAMPLES
        self.noise = torch.zeros(SAMPLES, 3, dtype=torch.float64)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return X[index] + self.noise[index], self.labels[index]


def features(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(x) for x, _ in DataLoader(DATA, batch_size=8)])


def in_a_variable(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        found = []
        with torch.no_grad():
            for x, _y in DataLoader(DATA, batch_size=8):
                found.append(model(x))
        centre = torch.cat(found).mean(0)
        for x, _y in loader:
            step((model(x) - centre).square().mean())


def in_an_argument(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    def epoch(number: int, loss_before: float, near: torch.Tensor) -> None:
        shown = loss_before
        for x, _y in loader:
            step((model(x) - near).square().mean() * (1.0 + number))
            shown += 1.0

    for number in ours.epochs(2):
        loss = mse_loss(features(model), Y).item()
        centre = features(model).mean(0)
        epoch(number, loss, centre)


class Trainer:
    """With a function for the epoch, and one for the step."""

    centre: Any = None
    loss = 0.0

    def fit(self, ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            self.epoch(model, loader, step)

    def epoch(self, model: nn.Module, loader: Any, step: Step) -> None:
        self.loss = mse_loss(features(model), Y).item()
        self.centre = features(model)[:2].mean(0).expand(2, -1)
        for x, _ in loader:
            self.step(model(x), step)

    def step(self, output: torch.Tensor, step: Step) -> None:
        step((output - self.centre[0]).square().mean())


def by_evaluation(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        scale = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})["loss"]
        for x, y in loader:
            step(mse_loss(model(x), y) * scale)


def by_a_weight(ours: Any, model: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        first = model[0]
        with torch.no_grad():
            near = (first.weight @ first.weight.t()).topk(2).values.mean(0)
        for x, _y in loader:
            step((model(x) - near[0]).square().mean())


def flat(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


class Proximal:
    """With a method that reads the model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def now(self) -> torch.Tensor:
        return sum((p.detach().square().sum() for _, p in self.model.named_parameters()), torch.zeros(()))


def in_one_vector(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        near = nn.utils.parameters_to_vector(model.parameters()).detach()
        for x, y in loader:
            to = nn.utils.parameters_to_vector(model.parameters())
            step(mse_loss(model(x), y) + (to - near).square().sum())


def in_masks(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        masks = {name: (p.abs() > 0.2).double() for name, p in model.named_parameters()}
        for x, y in loader:
            masked = {name: p * masks[name] for name, p in model.named_parameters()}
            step(mse_loss(torch.func.functional_call(model, masked, (x,)), y))


def in_a_loop(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        norms = []
        for p in model.parameters():
            norms.append(p.detach().norm().item())
        for x, y in loader:
            step(
                mse_loss(model(x), y) + sum((p.norm() - n) ** 2 for p, n in zip(model.parameters(), norms, strict=True))
            )


def by_a_function(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        near = flat(model)
        for x, y in loader:
            to = torch.cat([p.flatten() for p in model.parameters()])
            step(mse_loss(model(x), y) + (to - near).square().sum())


def by_a_method(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    proximal = Proximal(model)
    for _ in ours.epochs(2):
        scale = proximal.now()
        for x, y in loader:
            step(mse_loss(model(x), y) * scale)


def by_index(ours: Any, model: Any, loader: Any, step: Step) -> None:
    for _ in ours.epochs(2):
        near = model[0].weight.detach().mean(1)
        for x, y in loader:
            step(mse_loss(model(x), y) + (model[0].bias - near).square().sum())


def told(
    script: Script, capsys: pytest.CaptureFixture[str], dataset: Any = DATA, model: nn.Module | None = None
) -> list[str]:
    model = fresh(mlp) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(dataset, global_batch_size=BATCH)

    def step(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        ours.step(loss)

    script(ours, model, loader, step)
    return [
        line for line in capsys.readouterr().err.splitlines() if "at an epoch's beginning, and computes there" in line
    ]


@pytest.mark.parametrize(
    ("script", "name"),
    [
        (in_a_variable, "centre"),
        (in_an_argument, "centre"),
        (Trainer().fit, "self.centre"),
        (by_evaluation, "scale"),
        (by_a_weight, "near"),
        (in_one_vector, "near"),
        (in_masks, "masks"),
        (in_a_loop, "norms"),
        (by_a_function, "near"),
        (by_a_method, "scale"),
        (by_index, "near"),
    ],
)
def test_what_the_steps_use(script: Script, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(script, capsys)
    assert "test_epoch_outputs.py, line " in line
    assert f"computes there ({name}) what its steps use" in line


def test_evaluations_and_draws_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    dataset = Labelled()

    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        best, losses = 9.0, []
        for number in ours.epochs(3):
            for x, y in DataLoader(DATA, batch_size=8):
                with torch.no_grad():
                    loss = mse_loss(model(x), y)
            best = min(best, loss.item())
            losses.append(best)
            scale, noise = 1.0 / (1 + number), torch.rand(3, dtype=torch.float64)
            for x, y in loader:
                loss = mse_loss(model(x + noise), y) * scale
                step(loss)

    def of_a_form(ours: Any, model: Any, loader: Any, step: Step) -> None:
        last = model[2]
        for _ in ours.epochs(2):
            mask, count = torch.ones(last.weight.shape, dtype=torch.float64), float(last.weight.numel())
            noise = torch.randn_like(last.weight)
            for x, y in loader:
                step(mse_loss(model(x), y) + ((mask + noise) * last.weight).sum() / count)

    def draws(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            dataset.noise = torch.rand(SAMPLES, 3, dtype=torch.float64)
            for x, y in loader:
                step(mse_loss(model(x), y))

    assert told(script, capsys) == []
    assert told(of_a_form, capsys) == []
    assert told(draws, capsys, dataset) == []


def size(model: nn.Module) -> float:
    return float(sum(p.numel() for p in model.parameters()))


def place(model: nn.Module) -> Any:
    return next(model.parameters()).device


def test_the_parameters_themselves_and_what_does_not_depend_on_them_are_not_told_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def themselves(ours: Any, model: Any, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            of_layers = [p for p in model.parameters() if p.requires_grad]
            named, state, names = dict(model.named_parameters()), model.state_dict(), list(model.state_dict())
            groups = [{"params": [p], "decay": 1} for p in model.parameters()]
            for x, y in loader:
                of_norms = sum(p.square().sum() for p in of_layers) + named["0.bias"].sum() + state["0.bias"].sum()
                of_groups = sum(p.sum() * group["decay"] for group in groups for p in group["params"])
                step(mse_loss(model(x), y) + of_norms + of_groups / len(names))

    def of_a_form(ours: Any, model: Any, loader: Any, step: Step) -> None:
        for number in ours.epochs(2):
            scale, zero = size(model), torch.zeros(1, dtype=torch.float64, device=place(model))
            scale += float(sum(p.numel() for p in model.parameters()))
            rate = torch.full((1,), 0.5**number, dtype=torch.float64)
            for x, y in loader:
                step((mse_loss(model(x), y) * rate + zero).sum() / scale)

    assert told(themselves, capsys) == []
    assert told(of_a_form, capsys) == []


class Searched(nn.Module):
    """With a choice that is trained, and no parameter, as for an architecture."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = fresh(mlp)
        self.choice = torch.zeros(2, dtype=torch.float64, requires_grad=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sums."""
        return self.layer(x) * torch.softmax(self.choice, dim=-1)[:1]


def test_a_trained_tensor_that_is_no_parameter_of_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    model = Searched()
    optimizer = torch.optim.SGD([*model.parameters(), model.choice], lr=0.05)
    ours = session(model, optimizer)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(3):
        print(torch.softmax(model.choice, dim=-1))
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
    assert "pilot: " not in capsys.readouterr().err


@pytest.mark.parametrize("moves", [True, False])
def test_an_average_that_is_tracked(moves: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """And a teacher that is fixed."""

    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        tracked = fresh(mlp)
        ours.track("tracked", tracked)
        for _ in ours.epochs(2):
            centre = features(tracked).mean(0)
            for x, _y in loader:
                step((model(x) - centre).square().mean())
                if moves:
                    of_model = model.get_parameter("0.bias").data
                    tracked.get_parameter("0.bias").data.lerp_(of_model, 0.5)

    assert len(told(script, capsys)) == moves


def test_a_copy_of_the_model_has_no_hook(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            other = copy.deepcopy(model)
            features(other)
            for x, y in loader:
                step(mse_loss(model(x), y))

    assert told(script, capsys) == []


def test_what_is_stored_in_the_state_is_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    """What it is computed from is not, too."""
    dataset = Labelled()

    def script(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
        for _ in ours.epochs(2):
            near = features(model).flatten().argsort()
            ours.state["noise"] = dataset.noise[near]
            for x, y in loader:
                step(mse_loss(model(x), y) + ours.state["noise"].mean())

    assert told(script, capsys, dataset) == []


def by_another_name(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    state, ours.state["scale"] = ours.state, 1.0
    ours.state["norms"] = norms = []
    for epoch in ours.epochs(2):
        if epoch == 0:
            state["best"] = {name: p.clone() for name, p in model.state_dict().items()}
        norms[:] = [p.detach().norm().item() for p in model.parameters()]
        for x, y in loader:
            step(mse_loss(model(x), y) * state["scale"] * norms[0])


def beside_the_state(ours: Any, model: nn.Module, loader: Any, step: Step) -> None:
    state = {**ours.state}
    for _ in ours.epochs(2):
        state["near"] = features(model).mean(0)
        for x, _y in loader:
            step((model(x) - state["near"]).square().mean())


def test_the_state_by_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    """And lists in it. A dict of the script's own is told of."""
    assert told(by_another_name, capsys) == []
    (line,) = told(beside_the_state, capsys)
    assert "computes there (state) what its steps use" in line


def with_labels(*, tracked: bool) -> list[torch.Tensor]:
    """Of the model's own."""
    model, labels = fresh(mlp), nn.Module()
    labels.register_buffer("values", torch.zeros_like(Y))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    ours = session(model, optimizer)
    if tracked:
        ours.track("labels", labels)
    loader = ours.loader(TensorDataset(X, torch.arange(SAMPLES)), global_batch_size=BATCH)
    for _ in ours.epochs(2):
        if tracked:
            labels.get_buffer("values").copy_(features(model) + Y)
        else:
            ours.state["labels"] = features(model) + Y
        for x, index in loader:
            optimizer.zero_grad()
            targets = labels.get_buffer("values") if tracked else ours.state["labels"]
            loss = mse_loss(model(x), targets[index])
            loss.backward()
            ours.step(loss)
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("tracked", [False, True])
def test_labels_in_the_state(tracked: bool, capsys: pytest.CaptureFixture[str]) -> None:
    expected = with_labels(tracked=tracked)
    assert capsys.readouterr().err == ""
    for values in on_ranks(lambda: with_labels(tracked=tracked), 1, GROWS_AND_SHRINKS):
        torch.testing.assert_close(values, expected, rtol=1e-12, atol=1e-12)
