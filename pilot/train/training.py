"""What is trained and how far it is: everything that travels with a rescale and goes into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from pilot.checkpoint.tree import Encoded, copied
from pilot.core.errors import UserError
from pilot.train import identity, rng
from pilot.train.agreement_log import END_OF_EPOCH, STOP, Agreement, AgreementLog, Place, Sums
from pilot.train.lineage import Lineage
from pilot.train.lr import LearningRate
from pilot.train.optimizer_state import take_over
from pilot.train.sampler import StepShare
from pilot.train.session_checks import admit
from pilot.train.state import encoded


class Scheduler(Protocol):
    """What is used of torch's learning-rate schedulers."""

    def step(self, *metrics: float) -> None:
        """One step of the schedule; ``ReduceLROnPlateau`` takes what was measured."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state."""


@dataclass(slots=True)
class Position:
    """``step``: steps applied so far; ``cursor``: samples of ``epoch`` behind the parameters; ``samples``: of all
    epochs; ``at_end``: the script does what belongs to the end of the epoch; ``stopped``: there is no epoch more.
    """

    step: int = 0
    epoch: int = 0
    cursor: int = 0
    samples: int = 0
    at_end: bool = False
    stopped: bool = False


class Training:
    """Model, optimizer, scheduler, loss scaler, the run's identity, position, ledger, what was agreed, learning-rate
    factor, and the script's own ``user`` dict.

    ``agreed_step``: up to there all ranks held the same (:mod:`pilot.train.alarm`). ``in_meeting``: the script is in a
    meeting (:mod:`pilot.train.collectives`). ``effective_rate`` is the learning rate of the last step, of the
    optimizer's first group.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Scheduler | None,
        schedule: str | None,
        rate: LearningRate,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        _check_schedule(scheduler, schedule)
        self.model: nn.Module = getattr(model, "_orig_mod", model)  # of torch.compile: the names as without it
        admit(self.model, optimizer)
        self.identity = identity.of_training(self.model, optimizer)
        self.identity["the rules"] = f"lr_rule={rate.rule}, warmup_steps={rate.warmup_steps}, schedule={schedule}"
        self.optimizer = optimizer
        self.scheduler = scheduler
        self._schedule = schedule or ""
        self.scaler = scaler
        self.rate = rate
        self.position = Position()
        self.ledger = Lineage()
        self.agreements = AgreementLog()
        self.user: dict[str, Any] = {}
        self._user_at_end: dict[str, Any] | None = None
        self._user_taken: dict[str, Any] | None = None
        self.agreed_step = 0
        self.in_meeting = False
        self.effective_rate = 0.0

    @property
    def place(self) -> Place:
        """Between which two steps it is."""
        return self.position.epoch, self.position.step

    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained; of one without elements there is nothing to sum."""
        return [p for p in self.model.parameters() if p.requires_grad and p.numel()]

    def shared(self) -> Callable[[str], bool]:
        """Of which arrays in the state all ranks hold the same, by their paths: parameters and the optimizer's."""
        names = {f"model/{name}" for name, _ in self.model.named_parameters(remove_duplicate=False)}
        return lambda path: path in names or path.startswith("optimizer/")

    def apply(self, generation: int, share: StepShare) -> None:
        """Step the optimizer at the learning rate of this size, and account for the step's samples.

        Where the loss scaler finds a gradient that is not finite, which is then so on all ranks, the optimizer and the
        scheduler are left out.
        """
        stepped = self._step_optimizer(self.rate.factor(self.position.step))
        position = self.position
        self.ledger.add(generation, position.epoch, position.step, share.cursor, share.cursor_end)
        position.step += 1
        position.cursor = share.cursor_end
        position.samples += share.total
        if self.scheduler is not None and self._schedule == "step" and stepped:
            advance(self.scheduler)

    def clip(self, max_norm: float) -> float:
        """Scale the gradients so that their norm is at most ``max_norm``; their norm before."""
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        return float(nn.utils.clip_grad_norm_(self.parameters(), max_norm))

    def _step_optimizer(self, factor: float) -> bool:
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor
        self.effective_rate = float(groups[0]["lr"])
        stepped = self._step_scaled(self.scaler) if self.scaler is not None else self._step_plain()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        return stepped

    def _step_plain(self) -> bool:
        self.optimizer.step()
        return True

    def _step_scaled(self, scaler: torch.amp.GradScaler) -> bool:
        """It unscales where :meth:`clip` did not; and it shrinks exactly where it left the optimizer out."""
        scale = scaler.get_scale()
        scaler.step(self.optimizer)
        scaler.update()
        return scaler.get_scale() >= scale

    def reached_end(self) -> None:
        """The epoch has no more steps. Who takes over the state from now on does again what the script does here, so
        it gets the script's values as they are now.
        """
        self.position.at_end = True
        self._user_at_end = copied(self.user)

    def caught_up(self) -> None:
        """The script is where the state is. What it changed since it took the state over belongs to an earlier place,
        and the others had done it already.
        """
        if self._user_taken is not None:
            self._set_user(self._user_taken)

    def _set_user(self, values: Mapping[str, Any]) -> None:
        self.user.clear()
        self.user.update(copied(values))
        self._user_at_end = self._user_taken = None

    def metrics(self) -> dict[str, float]:
        """Of the last step, for the reports."""
        scale = {} if self.scaler is None else {"loss_scale": self.scaler.get_scale()}
        return {"learning_rate": self.effective_rate} | scale

    def agree(self, topic: int, sums: Sums) -> None:
        """The ranks met about ``topic``."""
        if topic == END_OF_EPOCH:
            self._next_epoch(sums)
        else:
            self.agreements.add(Agreement(*self.place, topic, sums))

    def _next_epoch(self, measured: Sums) -> None:
        self._user_at_end = None
        self.position.epoch += 1
        self.position.cursor = 0
        self.position.at_end = False
        self.position.stopped = STOP in measured
        if self.scheduler is None or self._schedule == "step":
            return
        if self._schedule == "epoch":
            advance(self.scheduler)
        elif self._schedule in measured:
            advance(self.scheduler, measured[self._schedule])
        elif not self.position.stopped:
            raise UserError(f"the scheduler needs session.epochs(..., {self._schedule}=function), see schedule=")

    def capture(self) -> dict[str, Any]:
        """The state; its tensors are the living ones (see :func:`~pilot.checkpoint.tree.copied`)."""
        return {
            "identity": dict(self.identity),
            "position": asdict(self.position),
            "ledger": np.array(self.ledger.rows, np.int64).reshape(-1, 6),
            "learning_rate": self.rate.as_dict(),
            "minutes": self.agreements.rows(),
            "user": next(d for d in (self._user_at_end, self._user_taken, self.user) if d is not None),
            "rng": rng.capture(),
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict() if self.scheduler is not None else {},
            "scaler": self.scaler.state_dict() if self.scaler is not None else {},
        }

    def encoded(self) -> Encoded:
        """What :meth:`capture` gives, taken apart to be saved or spread; :class:`UserError` names what does not fit."""
        return encoded(self.capture())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a state that :meth:`capture` gave on this or another rank, or a checkpoint held.

        Except for the script's values where the script is in a meeting whose outcome this state has: it will do all
        that the others did since by itself.
        """
        identity.expect_resumable(state.get("identity", self.identity), self.identity)
        place = self.place
        self.model.load_state_dict(state["model"])
        take_over(self.optimizer, copied(state["optimizer"]))
        if self.scheduler is not None:
            self.scheduler.load_state_dict(copied(state["scheduler"]))
        if self.scaler is not None and state.get("scaler"):
            self.scaler.load_state_dict(copied(state["scaler"]))
        self.position = Position(**state["position"])
        self.agreed_step = self.position.step
        self.ledger = Lineage(state["ledger"].tolist())
        self.agreements = AgreementLog(state.get("minutes", ()))
        self.rate = LearningRate(**state["learning_rate"])
        if not (self.in_meeting and self.place == place):
            self._set_user(state["user"])
            self._user_taken = copied(state["user"])
        rng.restore(state["rng"])


def advance(scheduler: Scheduler, *measured: float) -> None:
    """One step of the schedule; :class:`UserError` where it has no more (``OneCycleLR`` counts them)."""
    try:
        scheduler.step(*measured)
    except ValueError as error:
        raise UserError(
            f"{type(scheduler).__name__} cannot go on: {error}; make it for all steps of the run (with batch_size= an"
            " epoch has fewer steps on more nodes: let it count epochs by schedule='epoch', or use global_batch_size=)"
        ) from error


def _check_schedule(scheduler: Scheduler | None, schedule: str | None) -> None:
    plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
    if plateau and schedule in (None, "step", "epoch"):
        raise UserError("ReduceLROnPlateau needs a measure: schedule='loss' with session.epochs(n, loss=function)")
    if scheduler is not None and schedule is None:
        raise UserError(
            "say what the scheduler counts: pilot.train.session(..., schedule='step') where a plain loop calls"
            " scheduler.step() for each batch, schedule='epoch' where it does so for each epoch"
        )
    if not plateau and schedule not in (None, "step", "epoch"):
        raise UserError(f"schedule must be 'step' or 'epoch', got {schedule!r}")
