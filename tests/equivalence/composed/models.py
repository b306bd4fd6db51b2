"""Models, by choice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from tests.equivalence.loops import mlp


class Counting(nn.Module):
    """A buffer, and one that is not saved, which each forward in training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("temperature", torch.ones((), dtype=torch.float64), persistent=False)
        self.register_buffer("passes", torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
            self.temperature = self.temperature * 0.98
        return self.inner(x) * self.temperature + self.passes * 0.01


class Unused(nn.Module):
    """One layer is used only for some of the batches: those whose number of steps is even."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.extra = mlp(), nn.Linear(3, 1)
        self.register_buffer("use_extra", torch.tensor(True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.extra(x) if self.use_extra else self.inner(x)


class Frozen(nn.Module):
    """Batch norm whose statistics stay as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
        self.train()

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.inner[1].eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Experts(nn.Module):
    """Some samples, if any, take the second one."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.some = mlp(), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (chosen,) = torch.where(x[:, 0] > 0.8)
        output = self.all(x)
        return output.index_add(0, chosen, self.some(x[chosen])) if len(chosen) else output


class Remembering(nn.Module):
    """A list, a dict and a tensor that are no buffers, in its extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last, self.rates, self.count = mlp(), [1.0], {"a": 1.0}, torch.zeros((), dtype=torch.float64)
        self._phase = 0

    def get_extra_state(self) -> Any:
        return {"last": self.last, "rates": self.rates, "count": self.count, "_phase": self._phase}

    def set_extra_state(self, state: Any) -> None:
        vars(self).update(copy.deepcopy(state))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.last = [*self.last[-2:], 0.1 * len(self.last) + self._phase * 0.01]
            self.rates["a"] *= 0.99
            self.count += 0.1
            self._phase = (self._phase + 1) % 5
        return self.inner(x) * self.rates["a"] + sum(self.last) * 0.1 + self.count


class Exemplars(nn.Module):
    """A buffer that grows at the end of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("kept", torch.zeros(1, 3, dtype=torch.float64))

    def epoch_ends(self) -> None:
        self.kept = torch.cat([self.kept, self.inner[0].weight.detach()[:1]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 0.1 * self.kept.mean()


def normed() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "spectral norm": normed,
    "counting": Counting,
    "unused layer": Unused,
    "frozen statistics": Frozen,
    "experts": Experts,
    "remembering": Remembering,
    "exemplars": Exemplars,
}
