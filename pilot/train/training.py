"""What is trained and how far it is: everything that travels with a rescale and goes into a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from pilot.core.errors import UserError
from pilot.train import rng
from pilot.train.ledger import Ledger
from pilot.train.lr import LearningRate
from pilot.train.sampler import Share
from pilot.train.state import copied


class Scheduler(Protocol):
    """What is used of torch's learning-rate schedulers."""

    def step(self) -> None:
        """One step of the schedule."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state."""


@dataclass(slots=True)
class Position:
    """``step``: steps applied so far; ``cursor``: samples of ``epoch`` behind the parameters; ``samples``: of all
    epochs; ``epoch_samples``: that one epoch has (0: not known yet); ``stopped``: no more epochs.
    """

    step: int = 0
    epoch: int = 0
    cursor: int = 0
    samples: int = 0
    epoch_samples: int = 0
    stopped: bool = False


class Training:
    """Model, optimizer, scheduler, position, ledger, learning-rate factor, and the script's own ``user`` dict."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Scheduler | None,
        schedule: str,
        rate: LearningRate,
    ) -> None:
        if schedule not in ("step", "epoch"):
            raise UserError(f"schedule must be 'step' or 'epoch', got {schedule!r}")
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._schedule = schedule
        self.rate = rate
        self.position = Position()
        self.ledger = Ledger()
        self.user: dict[str, Any] = {}

    def fingerprint(self) -> int:
        """A number that ranks of one group share: of the names, shapes and dtypes of the model's tensors."""
        described = [(name, tuple(t.shape), str(t.dtype)) for name, t in self.model.state_dict().items()]
        return zlib.crc32(repr(described).encode())

    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def shared(self) -> Callable[[str], bool]:
        """Of which arrays in the state all ranks hold the same, by their paths: parameters and the optimizer's."""
        names = {f"model/{name}" for name, _ in self.model.named_parameters(remove_duplicate=False)}
        return lambda path: path in names or path.startswith("optimizer/")

    def apply(self, generation: int, share: Share) -> None:
        """Step the optimizer at the learning rate of this size, and account for the step's samples."""
        self._step_optimizer(self.rate.factor(self.position.step))
        position = self.position
        self.ledger.add(generation, position.epoch, position.step, share.cursor, share.cursor_end)
        position.step += 1
        position.cursor = share.cursor_end
        position.samples += share.total
        if self.scheduler is not None and self._schedule == "step":
            self.scheduler.step()

    def _step_optimizer(self, factor: float) -> None:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def effective_rate(self) -> float:
        """The learning rate of the last step, of the optimizer's first group."""
        return float(self.optimizer.param_groups[0]["lr"]) * self.rate.factor(max(self.position.step - 1, 0))

    def next_epoch(self) -> None:
        """The epoch is over."""
        self.position.epoch += 1
        self.position.cursor = 0
        if self.scheduler is not None and self._schedule == "epoch":
            self.scheduler.step()

    def capture(self) -> dict[str, Any]:
        """The state; its tensors are the living ones (see :func:`~pilot.train.state.copied`)."""
        return {
            "position": asdict(self.position),
            "ledger": np.array(self.ledger.rows, np.int64).reshape(-1, 6),
            "learning_rate": self.rate.as_dict(),
            "user": self.user,
            "rng": rng.capture(),
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else {},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state that :meth:`capture` gave on this or another rank, or a checkpoint held."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(copied(state["optimizer"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(dict(state["scheduler"]))
        self.position = Position(**state["position"])
        self.ledger = Ledger(state["ledger"].tolist())
        self.rate = LearningRate(**state["learning_rate"])
        self.user.clear()
        self.user.update(copied(state["user"]))
        rng.restore(state["rng"])
