"""A script is told of what it computes with a model before its step, and uses for another step of the same batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.equivalence.loops import BATCH, DATA, fresh, linear, session

Update = Callable[[Any, Any, torch.Tensor, torch.Tensor], None]


class Agent(nn.Module):
    """As in offline reinforcement learning: a value, and a policy that is weighted by it."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.policy = fresh(linear), fresh(linear)
        self.optimizers = {
            "value": torch.optim.SGD(self.value.parameters(), lr=0.01),
            "policy": torch.optim.SGD(self.policy.parameters(), lr=0.01),
        }


def weighs_by_the_old_value(ours: Any, agent: Agent, x: torch.Tensor, y: torch.Tensor) -> None:
    value = agent.value(x)
    advantage = y - value.detach()
    loss = mse_loss(value, y)
    agent.optimizers["value"].zero_grad()
    loss.backward()
    ours.step(loss, "value")
    weight = advantage.exp().clamp(max=2.0)
    loss = (weight * (agent.policy(x) - y).square()).mean()
    agent.optimizers["policy"].zero_grad()
    loss.backward()
    ours.step(loss, "policy")


def weighs_by_the_new_value(ours: Any, agent: Agent, x: torch.Tensor, y: torch.Tensor) -> None:
    made = agent.policy(x)
    value = agent.value(x)
    loss = mse_loss(value, y)
    agent.optimizers["value"].zero_grad()
    loss.backward()
    ours.step(loss, "value")
    print(value.mean(), loss)
    value = agent.value(x)
    loss = ((y - value.detach()).exp().clamp(max=2.0) * (made - y).square()).mean()
    agent.optimizers["policy"].zero_grad()
    loss.backward()
    ours.step(loss, "policy")


def steps_the_generator_first(ours: Any, agent: Agent, x: torch.Tensor, y: torch.Tensor) -> None:
    agent.fake = agent.policy.forward(x)
    agent.optimizers["policy"].zero_grad()
    fooled = (agent.value(x * agent.fake) - 1).square().mean()
    fooled.backward()
    ours.step(fooled, "policy")
    agent.optimizers["value"].zero_grad()
    loss = agent.value(x * agent.fake.detach()).square().mean() + mse_loss(agent.value(x), y)
    loss.backward()
    ours.step(loss, "value")


def steps_the_generator_last(ours: Any, agent: Agent, x: torch.Tensor, y: torch.Tensor) -> None:
    fake = agent.policy(x)
    agent.optimizers["value"].zero_grad()
    loss = agent.value(x * fake.detach()).square().mean() + mse_loss(agent.value(x), y)
    loss.backward()
    ours.step(loss, "value")
    agent.optimizers["policy"].zero_grad()
    loss = (agent.value(x * fake) - 1).square().mean()
    loss.backward()
    ours.step(loss, "policy")


def told(update: Update, capsys: pytest.CaptureFixture[str]) -> list[str]:
    agent = Agent()
    ours = session(agent, agent.optimizers)
    loader = ours.loader(DATA, global_batch_size=BATCH)
    for _ in ours.epochs(1):
        for x, y in loader:
            update(ours, agent, x, y)
    lines = capsys.readouterr().err.splitlines()
    return [line.partition("the script computes ")[2] for line in lines if "if a node dies between the two" in line]


@pytest.mark.parametrize(
    ("update", "what"),
    [
        (weighs_by_the_old_value, "advantage before the step of 'value'"),
        (steps_the_generator_first, "agent.fake"),
    ],
)
def test_what_a_later_step_uses(update: Update, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(update, capsys)
    assert line.startswith(what)


@pytest.mark.parametrize("update", [weighs_by_the_new_value, steps_the_generator_last])
def test_not_what_is_computed_again_or_with_others(update: Update, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(update, capsys) == []
