"""A script is told of hooks that do with each rank's gradient what is not linear; and not of others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from tests.equivalence.loops import BATCH, DATA, fresh, mlp, session, train

Prepare = Callable[[nn.Module], object]
NORMS: list[torch.Tensor] = []
clip = 0.5


def on_each(hook: Callable[[torch.Tensor], Any], *, is_after: bool = False) -> Prepare:
    def prepare(model: nn.Module) -> None:
        for parameter in model.parameters():
            (parameter.register_post_accumulate_grad_hook if is_after else parameter.register_hook)(hook)

    return prepare


def by_its_norm(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / (gradient.norm() + 1e-6)


def limited(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.clamp(-0.01, 0.01)


def in_place(gradient: torch.Tensor) -> None:
    gradient.data.clamp_(-0.01, 0.01)


def after(parameter: torch.Tensor) -> None:
    torch.nn.utils.clip_grad_value_([parameter], 0.01)


def shows_its_norm(gradient: torch.Tensor) -> None:
    NORMS[:] = [gradient.norm() / 2]


class Limits:
    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.clip(-0.01, 0.01)


def of_a_module(model: nn.Module) -> None:
    model[2].register_full_backward_hook(lambda _module, given, _output: (given[0].sign(),))  # type: ignore[index]  # a Sequential


def told(prepare: Prepare, capsys: pytest.CaptureFixture[str]) -> list[str]:
    model = fresh(mlp)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    prepare(model)
    ours = session(model, optimizer)
    train(ours, model, optimizer, ours.loader(DATA, global_batch_size=BATCH))
    return [line for line in capsys.readouterr().err.splitlines() if "what is not linear" in line]


@pytest.mark.parametrize(
    ("prepare", "name", "does"),
    [
        (on_each(limited), "0.weight", "clamp"),
        (on_each(lambda gradient: limited(gradient)), "0.weight", "clamp"),
        (on_each(partial(torch.clamp, min=-0.01, max=0.01)), "0.weight", "clamp"),
        (on_each(torch.sign), "0.weight", "sign"),
        (on_each(by_its_norm), "0.weight", "/ norm"),
        (on_each(lambda gradient: normalize(gradient, dim=0)), "0.weight", "normalize"),
        (on_each(in_place), "0.weight", "clamp_"),
        (on_each(Limits()), "0.weight", "clip"),
        (on_each(after, is_after=True), "0.weight", "clip_grad_value_"),
        (of_a_module, "2", "sign"),
    ],
)
def test_hooks_that_are_not_linear(prepare: Prepare, name: str, does: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(prepare, capsys)
    assert f"a hook on the gradient of {name}" in line
    assert f"({does}): each rank's" in line


@pytest.mark.parametrize(
    "prepare",
    [
        on_each(lambda gradient: gradient * clip),
        on_each(lambda gradient: gradient - gradient.mean()),
        on_each(torch.nan_to_num),
        on_each(shows_its_norm),
        on_each(lambda _parameter: None, is_after=True),
    ],
)
def test_others(prepare: Prepare, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(prepare, capsys) == []
