"""The script of a composition. It gets its session factory as an argument, as in :mod:`tests.equivalence.loops`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.equivalence.composed.covering import Composition
from tests.equivalence.composed.data import BATCHES, DATASETS, NOISE
from tests.equivalence.composed.models import MODELS
from tests.equivalence.composed.optimizers import OPTIMIZERS, SCHEDULERS
from tests.equivalence.loops import DATA, Result, fresh, linear, tensors

EPOCHS, STEPS = 3, 15


class Composed:
    """The script of a composition."""

    def __init__(self, made: Callable[..., Any], chosen: Composition) -> None:
        self.chosen = chosen
        self.model = fresh(MODELS[chosen["model"]])
        self.critic = fresh(linear)
        self.parameters = list(self.model.parameters())
        if chosen["trained"] in ("unfrozen", "a group added", "frozen from the start"):
            self.parameters[0].requires_grad_(False)
        self.given = OPTIMIZERS[chosen["optimizer"]](
            self.parameters[1:] if chosen["trained"] == "a group added" else self.parameters
        )
        self.names = isinstance(self.given, dict)
        models: Any = self.model
        if self.names:
            models = {"critic": self.critic, "model": self.model}
            self.given = {"critic": torch.optim.Adam(self.critic.parameters(), lr=0.02), **self.given}
        self.optimizer = (
            self.given["model"] if self.names else self.given[0] if isinstance(self.given, list) else self.given
        )
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        schedule = SCHEDULERS[chosen["schedule"]]
        self.scheduler = schedule[1](self.optimizer) if schedule else None
        self.session = self._session(made, models, schedule[0] if schedule else "")
        self.loader = self._loader()
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.8))
        if chosen["other"] in ("average", "teacher"):
            self.session.track("average", self.average)
        if schedule and not schedule[0]:
            self.session.track("scheduler", self.scheduler)
        self.start = [p.detach().clone() for p in self.parameters]
        self.passed = 0
        if chosen["state"] == "restored":
            self.session.on_restore(self._restored)
        self.parts = BATCHES[chosen["batches"]].get("accumulate", 1)

    def _session(self, made: Callable[..., Any], models: Any, schedule: str) -> Any:
        if not schedule:
            return made(models, self.given)
        schedulers: Any = {"model": self.scheduler} if self.names else self.scheduler
        if isinstance(self.given, list):
            schedulers = [self.scheduler, lr_scheduler.ConstantLR(self.given[1])]
            if schedule == "loss":
                schedulers[1] = lr_scheduler.ReduceLROnPlateau(self.given[1])
        return made(models, self.given, schedulers, schedule=schedule)

    def _loader(self) -> Any:
        dataset, options = DATASETS[self.chosen["data"]]
        make = self.session.stream if self.chosen["data"].startswith("stream") else self.session.loader
        return make(dataset(NOISE[self.chosen["noise"]]), **options, **BATCHES[self.chosen["batches"]])

    def _restored(self) -> None:
        self.passed = self.session.steps

    # --- its loop

    def run(self) -> Result:
        """Everything that it has at the end."""
        if self.chosen["loop"] in ("iterations", "next"):
            for _ in self.session.iterations(STEPS):
                if self.chosen["loop"] == "next":
                    for part in range(self.parts):
                        self._batch(self.loader.next(), part)
                else:
                    for part, batch in enumerate(self.loader):
                        self._batch(batch, part)
        else:
            measures = {"loss": self._measure} if self.chosen["schedule"] == "plateau" else {}
            for epoch in self.session.epochs(EPOCHS, **measures):
                self._begin(epoch)
                for number, batch in self._numbered():
                    self._batch(batch, number)
                self._end(epoch)
        return tensors(
            model=self.model,
            critic=self.critic,
            optimizer=self.given,
            scheduler=self.scheduler if self.scheduler is not None else [],
            average=self.average,
            state=self.session.state,
            steps=[self.session.steps, self.passed if self.chosen["state"] == "restored" else 0],
        )

    def _numbered(self) -> Iterator[tuple[int, Any]]:
        if self.chosen["loop"] == "enumerate":
            yield from enumerate(self.loader)
        else:
            yield from zip(itertools.count(), self.loader)

    def _begin(self, epoch: int) -> None:
        match self.chosen["trained"]:
            case "unfrozen" if epoch == 1:
                self.parameters[0].requires_grad_(True)
            case "in turns":
                self.parameters[0].requires_grad_(epoch % 2 == 0)
            case "a group added" if epoch == 1:
                self.optimizer.add_param_group({"params": [self.parameters[0].requires_grad_(True)], "lr": 0.01})
        match self.chosen["by hand"]:
            case "rate of an epoch":
                for group in self.optimizer.param_groups:
                    group["lr"] *= 0.8
            case "momenta forgotten" if epoch == 1:
                self.optimizer.state.clear()
            case "noisy":
                with torch.no_grad():
                    self.parameters[-1].add_(torch.rand(()).item() * 0.01 + random.random() * 0.01)
        if self.chosen["evaluated"] == "before the epoch":
            self._evaluate()

    def _end(self, epoch: int) -> None:
        if self.chosen["by hand"] == "reset" and epoch == 0:
            with torch.no_grad():
                self.parameters[-1].zero_()
        if self.chosen["evaluated"] == "after the epoch":
            self._evaluate()

    # --- a batch of it

    def _batch(self, batch: Any, number: int) -> None:
        session, chosen = self.session, self.chosen
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        if self.parts == 1 or number % self.parts == 0:
            self._zero_grad()
        if chosen["by hand"] == "rate by steps":
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=False):
                group["lr"] = rate / (1 + session.steps)
        if chosen["model"] == "unused layer":
            self.model.use_extra = session.steps % 2 == 0
        if self.names:
            loss = (self.critic(x) - self.model(x).detach()).square().mean()
            loss.backward()
            session.step(loss, "critic", **self._weight(x))
            self._zero_grad()
        loss = self._loss(x, y)
        (loss / self.parts).backward()
        if number % self.parts == self.parts - 1 and self._step(loss, self._weight(x)):
            self._stepped()

    def _zero_grad(self) -> None:
        for one in self.given.values() if self.names else self.given if isinstance(self.given, list) else [self.given]:
            one.zero_grad()

    def _weight(self, x: torch.Tensor) -> dict[str, Any]:
        return {"weight": self._weights(x).sum()} if self.chosen["weight"] == "of samples" else {}

    def _weights(self, x: torch.Tensor) -> torch.Tensor:
        return 1.0 + (x[:, 0] > 0)

    def _loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        output = self.model(x)
        each = (output - y).square().sum(1)
        if self.names:
            each = each + 0.1 * self.critic(x).detach().square().sum(1)
        if self.chosen["other"] == "teacher":
            each = each + 0.1 * (output - self.average(x).detach()).square().sum(1)
        weights = self._weights(x) if self.chosen["weight"] == "of samples" else torch.ones_like(each)
        loss = (weights * each).sum() / weights.sum()
        if self.chosen["other"] == "distance to the start":
            for p, start in zip(self.parameters, self.start, strict=True):
                loss = loss + 0.01 * (p - start).square().sum()
        return loss

    def _step(self, loss: torch.Tensor, weight: dict[str, Any]) -> bool:
        session, name = self.session, {"name": "model"} if self.names else {}
        match self.chosen["gradients"]:
            case "clipped":
                session.clip_grad_norm(0.3)
            case "decayed":
                with torch.no_grad():
                    self.parameters[-1].mul_(0.99)
            case "summed and clipped":
                if session.sum(loss, **name, **weight):
                    nn.utils.clip_grad_norm_(self.parameters, 0.3)
                return session.step(**name)
            case "summed and scaled":
                if session.sum(loss, **name, **weight):
                    for p in self.parameters:
                        if p.grad is not None:
                            p.grad.mul_(1 / (1 + session.steps))
                return session.step(**name)
        return session.step(loss, **name, **weight)

    def _stepped(self) -> None:
        session, state = self.session, self.session.state
        self.passed += 1
        match self.chosen["state"]:
            case "counts":
                state["steps"] = state.get("steps", 0) + 1
            case "tensors":
                norm = self.parameters[-1].detach().norm()
                state["norm"] = state.get("norm", torch.zeros_like(norm)).mul(0.9) + norm
            case "lists":
                state.setdefault("history", []).append(session.steps)
        if self.chosen["by hand"] == "clamped":
            with torch.no_grad():
                self.parameters[-1].clamp_(-0.05, 0.05)
        if self.chosen["other"] in ("average", "teacher"):
            self.average.update_parameters(self.model)
        if self.chosen["schedule"] == "tracked":
            self.scheduler.step()
        if self.chosen["evaluated"] == "between steps" and session.steps % 2 == 0:
            self._evaluate()

    def _evaluate(self) -> None:
        state = self.session.state
        loss = self.session.evaluate(DATA, self._measures, batch_size=3)["loss"]
        if loss > state.get("best", math.inf):
            for group in self.optimizer.param_groups:
                group["lr"] *= 0.9
        state["best"] = min(loss, state.get("best", math.inf))

    def _measures(self, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": (self.model(batch[0]) - batch[1]).square().mean()}

    def _measure(self) -> float:
        self.model.eval()
        with torch.no_grad():
            loss = self._measures(DATA.tensors)["loss"].item()
        self.model.train()
        return loss
