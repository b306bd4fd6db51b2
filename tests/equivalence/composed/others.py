"""What a composition tracks besides its model, by choice: it is used in the loss, or updated after steps or epochs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Nothing:
    """And what all of them have: when they are told, and a penalty for the loss."""

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
