"""A script is told of what it does in its steps by the loss of its own batch, and not of what does not depend on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session

Script = Callable[[Any, Any, Any, torch.optim.Optimizer], None]


def by_a_plateau(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    plateau = ReduceLROnPlateau(optimizer)
    ours.track("plateau", plateau)
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            plateau.step(loss.item())


def by_what_the_state_has(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    ours.state["last"], ours.state["best"] = [0.0] * 3, 9.0
    for _ in ours.iterations(9):
        x, y = loader.next()
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        if ours.step(loss):
            ours.state["last"] = [*ours.state["last"][1:], loss.item()]
            mean = sum(ours.state["last"]) / 3
            if mean > ours.state["best"]:
                optimizer.param_groups[0]["lr"] *= 0.5


def by_what_a_function_returns(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    def train(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)
        return loss.item()

    for _ in ours.epochs(2):
        for x, y in loader:
            last = train(x, y)
            if last > 9.0:
                for group in optimizer.param_groups:
                    group["lr"] *= 0.5


def by_what_it_gives_to_a_function(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    def step(loss: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss.backward()
        return ours.step(loss)

    for _ in ours.epochs(2):
        for x, y in loader:
            loss = mse_loss(model(x), y)
            step(loss)
            if loss > 9.0:
                model.load_state_dict(model.state_dict())


def by_leaving(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    done = False
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            if loss.item() < 1e-9:
                done = True
                break
        if done:
            break


def by_returning(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in ours.iterations(9):
        x, y = loader.next()
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        ours.step(loss)
        if loss < 1e-9:
            return


def by_stopping(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
    """With patience."""
    worse, best = 0, 9.0
    for _ in ours.epochs(2):
        for x, y in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            last = loss.item()
            if last < best:
                best, worse = last, 0
            else:
                worse += 1
            if worse > 99:
                ours.stop()


@pytest.mark.parametrize(
    ("script", "names"),
    [
        (by_leaving, "loss"),
        (by_returning, "loss"),
        (by_stopping, "best, last, loss, worse"),
        (by_a_plateau, "loss"),
        (by_what_the_state_has, "loss, mean"),
        (by_what_a_function_returns, "last"),
        (by_what_it_gives_to_a_function, "loss"),
    ],
)
def test_what_depends_on_the_loss(script: Script, names: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(script, capsys)
    assert f"by the loss of its batch ({names})" in line


def test_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        schedule = StepLR(optimizer, 3)
        ours.track("schedule", schedule)
        for _ in ours.epochs(2):
            best, total, losses = 9.0, 0.0, list[float]()
            for i, (x, y) in enumerate(loader):
                loss = mse_loss(model(x), y)
                if not torch.isfinite(loss):
                    raise AssertionError
                if torch.isnan(loss):
                    break
                optimizer.zero_grad()
                loss.backward()
                norm = ours.clip_grad_norm(9.0)
                stepped = ours.step(loss)
                if math.isnan(loss.item()):
                    raise AssertionError
                schedule.step()
                total += loss.item()
                losses.append(total / (i + 1))
                if total < best:
                    best = total
                print(f"{loss.item():.3f} {schedule.get_last_lr()} {norm}")
                if stepped:
                    optimizer.param_groups[0]["momentum"] = min(0.9, 0.5 + ours.steps / 100)

    assert told(script, capsys) == []


@pytest.mark.parametrize("undo", ["copy_", "data", ""])
def test_weights_that_a_gradient_of_the_loss_moves_before_the_step(
    undo: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In sharpness-aware minimization they are set back."""

    def script(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        parameters = [*model.parameters()]
        for _ in ours.epochs(1):
            for x, y in loader:
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                gradients = torch.autograd.grad(loss, parameters)
                before = [one.detach().clone() for one in parameters]
                with torch.no_grad():
                    for one, gradient in zip(parameters, gradients, strict=True):
                        one.add_(gradient * 0.01)
                mse_loss(model(x), y).backward()
                for one, was in zip(parameters, before, strict=True):
                    if undo == "data":
                        one.data = was
                if undo == "copy_":
                    with torch.no_grad():
                        for one, was in zip(parameters, before, strict=True):
                            one.copy_(was)
                ours.step(loss)

    def stays(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in ours.epochs(1):
            for x, y in loader:
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                (gradient,) = torch.autograd.grad(loss, model[0].weight, retain_graph=True)
                model[0].weight.data.add_(gradient * 0.01)
                loss.backward()
                ours.step(loss)

    lines = told(script if undo else stays, capsys)
    assert len(lines) == (not undo)


@pytest.mark.parametrize("by", ["gradients", "an average", ""])
def test_weights_of_a_loss_that_come_from_losses(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As networks that solve equations adapt them; or only printed."""

    def script(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        for step in ours.iterations(8):
            x, y = loader.next()
            optimizer.zero_grad()
            first, second = mse_loss(model(x), y), model(x).square().mean()
            if step % 3 == 0:
                gradients = torch.autograd.grad(first, [*model.parameters()], retain_graph=True)
                largest = max(one.abs().max() for one in gradients)
                ours.state["weight"] = ours.state.get("weight", 1.0) * 0.9 + 0.1 * float(largest)
            loss = first + ours.state.get("weight", 1.0) * second
            loss.backward()
            ours.step(loss)

    def only_printed(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in ours.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                loss = mse_loss(model(x), y) / (1 + ours.state.get("steps", 0))
                loss.backward()
                ours.step(loss)
                ours.state["steps"] = ours.steps
                ours.state["shown"] = 0.9 * ours.state.get("shown", 0.0) + loss.item()
                print(ours.state["shown"])

    def with_average(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in ours.epochs(2):
            for x, y in loader:
                optimizer.zero_grad()
                weight = 1 / (1 + ours.state.get("mean", 0.0))
                loss = mse_loss(model(x), y) * weight
                loss.backward()
                ours.step(loss)
                ours.state["mean"] = 0.9 * ours.state.get("mean", 0.0) + 0.1 * loss.item()

    scripts = {"gradients": (script, "weight"), "an average": (with_average, "mean"), "": (only_printed, "")}
    lines = told(scripts[by][0], capsys, "of the losses of its own batches (")
    assert [f"(session.state[{scripts[by][1]!r}])" in line for line in lines] == ([True] if by else [])


@pytest.mark.parametrize("by_iteration", [False, True])
def test_parameters_that_are_set_from_the_batch(by_iteration: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """As unused codes of a quantizer are after a step."""

    def epochs(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        first, unused = model[0], torch.tensor([0, 1])
        for _ in ours.epochs(1):
            for number, (x, y) in enumerate(loader):
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                loss.backward()
                ours.step(loss)
                hidden = first(x).detach()
                if number == 2:
                    first.bias.data[unused] = hidden[0, unused]

    def iterations(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in ours.iterations(3):
            x, y = loader.next()
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            with torch.no_grad():
                for one in model.parameters():
                    one.add_(x.mean() * 1e-3)

    (line,) = told(iterations if by_iteration else epochs, capsys, "changes parameters by its own batch (")
    assert ("(x)" if by_iteration else "(hidden)") in line


@pytest.mark.parametrize("is_summed", [False, True])
def test_gradients_that_are_set_from_the_batch(is_summed: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """As GradNorm sets those of its weights: those that are not summed yet become means."""

    def after(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        weight = model[0].bias
        for _ in ours.epochs(1):
            for x, y in loader:
                optimizer.zero_grad()
                losses = [mse_loss(model(x), y), model(x).square().mean()]
                sum(losses).backward(retain_graph=True)
                norms = []
                for one in losses:
                    norms.append(torch.autograd.grad(one, model[2].weight, create_graph=True)[0].norm())
                ours.sum()
                weight.grad = torch.autograd.grad(torch.stack(norms).sum(), weight)[0]
                ours.step()

    def before(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        weight = model[0].bias
        for _ in ours.epochs(1):
            for x, y in loader:
                optimizer.zero_grad()
                loss = mse_loss(model(x), y)
                for one, its in zip(model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True):
                    one.grad = its
                if ours.sum():
                    weight.grad = weight.grad / (1 + weight.grad.norm())
                ours.step()

    lines = told(after if is_summed else before, capsys, "changes gradients by its own batch (norms) after session.sum")
    assert len(lines) == is_summed


def test_what_is_changed_by_the_batch_and_is_no_parameter_or_by_gradients(capsys: pytest.CaptureFixture[str]) -> None:
    """Samples that are moved against the model; weights that decay, or follow a rule of their own."""

    def script(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        average = deepcopy(model)
        ours.track("average", average)
        for _ in ours.epochs(1):
            for number, (x, y) in enumerate(loader):
                moved = torch.zeros_like(x, requires_grad=True)
                loss = mse_loss(model(x + moved), y)
                (gradient,) = torch.autograd.grad(loss, moved)
                moved.data.add_(gradient.sign() * 0.01)
                moved.data = torch.clamp(moved, -0.1, 0.1)
                x.data.clamp_(-3, 3)
                optimizer.zero_grad()
                mse_loss(model(x + moved.detach()), y).backward()
                if ours.sum():
                    for one in model.parameters():
                        one.data.add_(one.grad * 1e-3)
                ours.step()
                with torch.no_grad():
                    for one, its in zip(model.parameters(), average.parameters(), strict=True):
                        one.mul_(1 - 1e-3 / (number + 1))
                        its.lerp_(one, 0.1)

    assert told(script, capsys, "of the batch") == []


def test_steps_of_a_copy_that_is_thrown_away(capsys: pytest.CaptureFixture[str]) -> None:
    """As Reptile takes them."""

    def script(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        for _ in ours.epochs(1):
            for x, y in loader:
                copy = deepcopy(model)
                for _ in range(2):
                    loss = mse_loss(copy(x), y)
                    gradients = torch.autograd.grad(loss, [*copy.parameters()])
                    with torch.no_grad():
                        for one, gradient in zip(copy.parameters(), gradients, strict=True):
                            one.sub_(0.01 * gradient)
                optimizer.zero_grad()
                for one, its in zip(model.parameters(), copy.parameters(), strict=True):
                    one.grad = one.detach() - its.detach()
                ours.step(loss)

    assert told(script, capsys) == []


def test_what_the_session_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """By a name that a loss has, too."""

    def script(ours: Any, loader: Any, model: Any, optimizer: torch.optim.Optimizer) -> None:
        plateau = ReduceLROnPlateau(optimizer)
        ours.track("plateau", plateau)
        for step in ours.iterations(9):
            x, y = loader.next()
            optimizer.zero_grad()
            loss = mse_loss(model(x), y)
            loss.backward()
            ours.step(loss)
            if step % 3 == 2:
                means = ours.evaluate(DATA, lambda batch: {"loss": mse_loss(model(batch[0]), batch[1])})
                loss = means["loss"]
                plateau.step(loss)

    assert told(script, capsys) == []


def told(script: Script, capsys: pytest.CaptureFixture[str], words: str = "by the loss of its batch") -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    ours = session(model, optimizer)
    script(ours, ours.loader(DATA, global_batch_size=BATCH), model, optimizer)
    return [line for line in capsys.readouterr().err.splitlines() if words in line]
