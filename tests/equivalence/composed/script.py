"""The script of a composition. It gets its session factory as an argument, as in :mod:`tests.equivalence.loops`."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch.optim import lr_scheduler

from pilot.train.ranks import script_end
from tests.equivalence.composed.choices import MODELS, OPTIMIZERS, OTHERS, SCHEDULERS
from tests.equivalence.composed.covering import Composition
from tests.equivalence.composed.data import BATCHES, DATASETS, NOISE
from tests.equivalence.composed.steps import Steps
from tests.equivalence.loops import Result, fresh, linear, tensors

EPOCHS, STEPS = 3, 15
LATER = ("unfrozen", "a group added", "groups added", "frozen from the start")


class Composed(Steps):
    """The script of a composition."""

    def __init__(self, made: Callable[..., Any], chosen: Composition) -> None:
        self.chosen = chosen
        self.model = fresh(MODELS[chosen["model"]])
        self.critic = fresh(linear)
        self.parameters = list(self.model.parameters())
        self.later = {"a group added": 1, "groups added": 2}.get(chosen["trained"], 0)
        for p in self.parameters[: max(self.later, 1)] if chosen["trained"] in LATER else ():
            p.requires_grad_(False)
        given = OPTIMIZERS[chosen["optimizer"]](self.parameters[self.later :])
        models: Any = self.model
        self.names = chosen["optimizer"].startswith("by names")
        if self.names:
            models = {"critic": self.critic, "model": self.model}
            given = {"critic": torch.optim.Adam(self.critic.parameters(), lr=0.02), **given}
        by_name = isinstance(given, dict)
        self.optimizers = [*given.values()] if by_name else given if isinstance(given, list) else [given]
        self.optimizer = given["model"] if by_name else self.optimizers[0]
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.scaler: Any = None
        if chosen["scaler"] != "none":
            self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=4)
        schedule = SCHEDULERS[chosen["schedule"]]
        self.scheduler = schedule[1](self.optimizer) if schedule else None
        self.session = self._session(made, models, given, schedule[0] if schedule else "")
        self.loader = self._loader()
        self.other = OTHERS[chosen["other"]](self.model)
        if self.other.tracked is not None:
            self.session.track("other", self.other.tracked)
        if schedule and not schedule[0]:
            self.session.track("scheduler", self.scheduler)
        self.start = [p.detach().clone() for p in self.parameters]
        self.passed = 0
        if chosen["state"] == "restored":
            self.session.on_restore(self._restored)

    def _session(self, made: Callable[..., Any], models: Any, given: Any, schedule: str) -> Any:
        options = {} if self.scaler is None else {"scaler": self.scaler}
        if not schedule:
            return made(models, given, **options)
        schedulers: Any = {"model": self.scheduler} if isinstance(given, dict) else self.scheduler
        if isinstance(given, list):
            schedulers = [self.scheduler, lr_scheduler.ConstantLR(given[1])]
            if schedule == "loss":
                schedulers[1] = lr_scheduler.ReduceLROnPlateau(given[1])
        return made(models, given, schedulers, schedule=schedule, **options)

    def _loader(self) -> Any:
        dataset, options = DATASETS[self.chosen["data"]]
        make = self.session.stream if self.chosen["data"].startswith("stream") else self.session.loader
        return make(dataset(NOISE[self.chosen["noise"]]), **options, **BATCHES[self.chosen["batches"]])

    def _restored(self) -> None:
        self.passed = self.session.steps

    # --- its loop

    def run(self) -> Result:
        """Everything that it has at the end."""
        with suppress(script_end.Released):  # the others had left the loop when it came
            try:
                self._loop()
            except BaseException:  # this ends a loop as a `break` does, but there is nothing to do at the end
                script_end._left.clear()
                raise
        result = self._result()
        script_end.script_ended()
        return result

    def _loop(self) -> None:
        if self.chosen["loop"] in ("iterations", "next"):
            for _ in self.session.iterations(STEPS):
                if self.chosen["loop"] == "next":
                    self._batch(self.loader.next(), 0)
                else:
                    for part, batch in enumerate(self.loader):
                        self._batch(batch, part)
                if self._leaves():
                    break
            return
        for epoch in self.session.epochs(EPOCHS):
            self._begin(epoch)
            for number, batch in self._numbered():
                self._batch(batch, number)
                if self._leaves():
                    break
            self._end(epoch)
            if self._leaves() or (self.chosen["end"] == "left after an epoch" and epoch == 1):
                break
            if self.chosen["schedule"] == "plateau":
                self.session.report(loss=self._measure())

    def _leaves(self) -> bool:
        return self.chosen["end"] == "left in an epoch" and self.session.state.get("applied") == 9

    def _result(self) -> Result:
        others = (self.scheduler, self.scaler, self.other.tracked)
        return tensors(
            model=self.model,
            critic=self.critic,
            optimizers=[one.state_dict() for one in self.optimizers],
            others=[one.state_dict() for one in others if one is not None],
            state=self.session.state,
            steps=[self.session.steps, self.passed if self.chosen["state"] == "restored" else 0],
        )

    def _numbered(self) -> Iterator[tuple[int, Any]]:
        if self.chosen["loop"] == "enumerate":
            yield from self.loader.enumerate()
        else:
            yield from zip(itertools.count(), self.loader)

    def _begin(self, epoch: int) -> None:
        first = self.parameters[0]
        match self.chosen["trained"]:
            case "unfrozen" if epoch == 1:
                first.requires_grad_(True)
            case "in turns":
                first.requires_grad_(epoch % 2 == 0)
            case "a group added" | "groups added" if 0 < epoch <= self.later:
                its = self.parameters[self.later - epoch].requires_grad_(True)
                self.optimizer.add_param_group({"params": [its], "lr": 0.01})
        match self.chosen["by hand"]:
            case "rate of an epoch":
                for group in self.optimizer.param_groups:
                    group["lr"] *= 0.8
            case "momenta forgotten" if epoch == 1:
                self.optimizer.state.clear()
            case "noisy":
                with torch.no_grad():
                    self.parameters[-1].add_(torch.rand(()).item() * 0.01 + random.random() * 0.01)
        self.other.epoch_begins()
        if self.chosen["data"] == "changed":
            self.loader.dataset.strength = 1.0 + 0.1 * epoch
        if self.chosen["state"] == "of epochs":
            self.session.state["begun"] = self.session.state.get("begun", 0) + 1
        if self.chosen["evaluated"] == "before the epoch":
            self._evaluate()
        if self.chosen["evaluated"] == "halves before the epoch, between steps":
            self._evaluate_halves()

    def _end(self, epoch: int) -> None:
        match self.chosen["by hand"]:
            case "reset" if epoch == 0:
                with torch.no_grad():
                    self.parameters[-1].zero_()
            case "loaded":
                self._load_scaled()
        if self.chosen["model"] == "exemplars":
            self.model.epoch_ends()
        self.other.epoch_ends()
        if self.chosen["state"] == "of epochs":
            self.session.state.setdefault("ended", []).append(float(self.parameters[-1].detach().sum()))
        if self.chosen["evaluated"] == "after the epoch":
            self._evaluate()
        if self.chosen["evaluated"] == "twice after the epoch":
            self._evaluate_twice()

    def _load_scaled(self) -> None:
        state = self.model.state_dict()
        self.model.load_state_dict(state | {name: 0.99 * p.detach() for name, p in self.model.named_parameters()})
