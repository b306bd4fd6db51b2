"""Several nodes that train seldom synchronised, as plain arithmetic in one process: what sessions must be equal to.

A node makes inner steps on given batches (:meth:`Node.train`). :meth:`Nodes.close` ends the round of all: the changes
of their parameters are averaged by samples, and an outer SGD with momentum applies the average.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass
class Node:
    """One node's own objects. ``step(node, batch)`` computes gradients, and returns the number of samples."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[Node, Any], int]
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    average: torch.optim.swa_utils.AveragedModel | None = None
    steps: int = 0
    samples: int = 0

    def train(self, batches: Iterable[Any]) -> None:
        """Make an inner step on each batch."""
        for batch in batches:
            self.optimizer.zero_grad()
            self.samples += self.step(self, batch)
            self.steps += 1
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            if self.average is not None:
                self.average.update_parameters(self.model)

    def averaged(self) -> dict[str, torch.Tensor]:
        """Return the tensors that are averaged by value: buffers, and all of a tracked average."""
        tracked = {} if self.average is None else self.average.state_dict()
        return dict(self.model.named_buffers()) | {f"average.{name}": tensor for name, tensor in tracked.items()}


@dataclass
class Nodes:
    """The nodes that train now; all begin with the model of the first one."""

    nodes: list[Node]
    outer_lr: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    rounding: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor
    shared: dict[str, torch.Tensor] = field(default_factory=dict)
    velocity: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shared = {name: p.detach().clone() for name, p in self.nodes[0].model.named_parameters()}

    def close(self) -> None:
        """End the round: all nodes begin the next one with the same model, after as many steps as the fastest."""
        total = sum(node.samples for node in self.nodes)
        weights = [node.samples / total for node in self.nodes]
        for name, before in self.shared.items():
            changes = [
                (n.model.get_parameter(name).detach() - before) * w for n, w in zip(self.nodes, weights, strict=True)
            ]
            self.shared[name] = self._outer(name, before, -self.rounding(sum(map(self.rounding, changes))))
        means = {name: self._mean(name, weights) for name in self.nodes[0].averaged()}
        most = max(node.steps for node in self.nodes)
        for node in self.nodes:
            for name, tensor in self.shared.items():
                node.model.get_parameter(name).data.copy_(tensor)
            for name, tensor in node.averaged().items():
                tensor.copy_(means[name])
            for _ in range(most - node.steps if node.scheduler is not None else 0):
                node.scheduler.step()
            node.steps = node.samples = 0

    def join(self, node: Node, like: Node | None = None) -> None:
        """Add a node between rounds, with a fresh state of the inner optimizer or a copy of that of ``like``."""
        first = self.nodes[0]
        for one, other in ((node.model, first.model), (node.scheduler, first.scheduler), (node.average, first.average)):
            if one is not None and other is not None:
                one.load_state_dict(copy.deepcopy(other.state_dict()))
        groups, state = first.optimizer.state_dict()["param_groups"], (like or node).optimizer.state_dict()["state"]
        node.optimizer.load_state_dict(copy.deepcopy({"state": state, "param_groups": groups}))
        self.nodes.append(node)

    def _outer(self, name: str, before: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        speed = self.velocity[name] = self.momentum * self.velocity.get(name, torch.zeros_like(before)) + gradient
        return before - self.outer_lr * (gradient + self.momentum * speed if self.nesterov else speed)

    def _mean(self, name: str, weights: list[float]) -> torch.Tensor:
        values = [node.averaged()[name] for node in self.nodes]
        mean = sum(value.double() * weight for value, weight in zip(values, weights, strict=True))
        return (mean if values[0].is_floating_point() else mean.round()).to(values[0].dtype)
