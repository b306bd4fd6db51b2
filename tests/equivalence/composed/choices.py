"""Models, optimizers and schedulers, and what a composition tracks besides its model, by choice."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.equivalence.loops import mlp

# --- models ---


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

# --- optimizers of a list of parameters, and schedulers ---


class Own(torch.optim.Optimizer):
    """With a counter and a generator in attributes; it also draws from torch's."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.count, self.noise = 0, torch.Generator().manual_seed(3)

    @torch.no_grad()
    def step(self, _closure: Any = None) -> None:
        self.count += 1
        drawn = torch.rand((), generator=self.noise, dtype=torch.float64).item()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                    p.sub_(p.grad, alpha=group["lr"] * (1 + drawn) / (self.count + self.state[p]["steps"]))
                    p.add_(torch.randn_like(p), alpha=0.01)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "adam fused": lambda ps: torch.optim.Adam(ps, lr=0.02, fused=True, amsgrad=True),
    "list": lambda ps: [torch.optim.SGD(ps[:-1], lr=0.05, momentum=0.9), torch.optim.Adam(ps[-1:], lr=0.02)],
    "own": Own,
    "rate in a tensor": lambda ps: torch.optim.Adam(ps, lr=torch.tensor(0.02, dtype=torch.float64)),
    "by names": lambda ps: {"model": torch.optim.SGD(ps, lr=0.05, momentum=0.9)},
    "by names, in turns": lambda ps: {"model": torch.optim.Adam(ps, lr=0.02)},
    "parts by name": lambda ps: {
        "model": torch.optim.SGD(ps[:-1], lr=0.05, momentum=0.9),
        "head": torch.optim.Adam(ps[-1:], lr=0.02),
    },
}
SCHEDULERS: dict[str, tuple[str, Callable[[Any], Any]] | None] = {
    "none": None,
    "by step": ("step", lambda o: lr_scheduler.StepLR(o, 3, 0.7)),
    "by epoch": ("epoch", lambda o: lr_scheduler.ExponentialLR(o, 0.6)),
    "one cycle": ("samples", lambda o: lr_scheduler.OneCycleLR(o, 0.08, total_steps=40)),
    "plateau": ("loss", lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0)),
    "tracked": ("", lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
}

# --- tracked objects: used in the loss, or updated after steps or epochs ---


class Nothing:
    """The methods of all: called at these moments, and a penalty for the loss."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.tracked: Any = None

    def epoch_begins(self) -> None:
        pass

    def stepped(self, steps: int) -> None:
        """After each step, whether it was applied or not."""

    def epoch_ends(self) -> None:
        pass

    def penalties(self, _x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Of each sample."""
        return torch.zeros_like(output[:, 0])


class Average(Nothing):
    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.tracked = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8))

    def stepped(self, steps: int) -> None:  # noqa: ARG002  # others need it
        self.tracked.update_parameters(self.model)


class Teacher(Average):
    def penalties(self, x: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return 0.1 * (output - self.tracked(x).detach()).square().sum(1)


class OfEpochs(Average):
    """Stochastic weight averaging."""

    def stepped(self, steps: int) -> None:
        pass

    def epoch_ends(self) -> None:
        self.tracked.update_parameters(self.model)


class Target(Teacher):
    """A copy that is renewed every few steps."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.tracked = copy.deepcopy(model)

    def stepped(self, steps: int) -> None:
        if steps % 4 == 3:
            self.tracked.load_state_dict(self.model.state_dict())


class Anchor(Target):
    """A copy that is renewed at each epoch's beginning."""

    def stepped(self, steps: int) -> None:
        pass

    def epoch_begins(self) -> None:
        self.tracked.load_state_dict(self.model.state_dict())


class Slow(Nothing):
    """Lookahead: each third step the weights go back, halfway to slow ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.tracked = self
        self._slow, self._count = [p.detach().clone() for p in model.parameters()], 0

    def state_dict(self) -> dict[str, Any]:
        return {"slow": self._slow, "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._slow, self._count = state["slow"], state["count"]

    @torch.no_grad()
    def stepped(self, steps: int) -> None:  # noqa: ARG002  # others need it
        self._count += 1
        if self._count % 3 == 0:
            for slow, p in zip(self._slow, self.model.parameters(), strict=True):
                p.copy_(slow.lerp_(p, 0.5))


OTHERS: dict[str, Callable[[nn.Module], Nothing]] = {
    "nothing": Nothing,
    "average": Average,
    "teacher": Teacher,
    "average of epochs": OfEpochs,
    "target": Target,
    "anchor": Anchor,
    "lookahead": Slow,
    "distance to the start": Nothing,
}
