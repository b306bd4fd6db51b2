"""Scripts composed of several features, since rows have mostly one each: a *composition* has one *choice* per *axis* of
:data:`AXES`, and :func:`covering` draws some such that any two choices which go together occur in one of them.

A script gets its session factory as an argument, as in :mod:`tests.equivalence.loops`; :class:`PlainLoop` adds what
its plain session has not: other data and loops, weights and evaluations.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import default_collate

from pilot.train import rng
from pilot.train.order import Drawn, permutation
from pilot.train.sampler import mix
from tests import sample_streams
from tests.equivalence.loops import DATA, SAMPLES, SEED, Plain, Result, fresh, session, tensors
from tests.equivalence.loops import linear as linear
from tests.equivalence.loops import mlp as mlp
from tests.equivalence.rows import in_world
from tests.unit.train.storm import End

Composition = Mapping[str, str]
Apart = tuple[str, ...]

EPOCHS, BATCH, STEPS = 3, 4, 15


# --- models ----------------------------------------------------------------------------------------------------------


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv1d(1, 2, 2), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.conv(x.unsqueeze(1)).tanh().flatten(1))


class Embedded(nn.Module):
    """A step looks only some rows up."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.out = nn.Embedding(9, 3, padding_idx=0), nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rows((x.abs() * 4).long().clamp(max=8)).mean(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.out = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 1)
        self.other.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.other(self.one(x).tanh()))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x.unsqueeze(2))[0][:, -1])


class Counting(nn.Module):
    """A buffer and a plain attribute that each forward in training changes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.temperature = mlp(), 1.0
        self.register_buffer("passes", torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.passes += 1
            self.temperature *= 0.98
        return self.inner(x) * self.temperature + self.passes * 0.01


class Unused(nn.Module):
    """One layer is used only for some of the batches: those whose number of steps is even."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.extra = mlp(), nn.Linear(3, 1)
        self.use_extra = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.extra(x) if self.use_extra else self.inner(x)


def normed() -> nn.Module:
    return nn.Sequential(spectral_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "convolution": Convolved,
    "embedding": Embedded,
    "tied": Tied,
    "lstm": Recurrent,
    "spectral norm": normed,
    "counting": Counting,
    "unused layer": Unused,
}

# --- optimizers and schedulers: of a list of parameters --------------------------------------------------------------


def in_groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    groups = [{"params": parameters[:1], "lr": 0.02, "weight_decay": 0.1}, {"params": parameters[1:]}]
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9, nesterov=True)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Any]] = {
    "sgd": lambda ps: torch.optim.SGD(ps, lr=0.05, momentum=0.9),
    "adamw foreach": lambda ps: torch.optim.AdamW(ps, lr=0.02, foreach=True),
    "adam fused": lambda ps: torch.optim.Adam(ps, lr=0.02, fused=True, amsgrad=True),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, lr=0.05, lr_decay=0.1),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, lr=0.01, momentum=0.5, centered=True),
    "groups": in_groups,
    "list": lambda ps: [torch.optim.SGD(ps[:2], lr=0.05, momentum=0.9), torch.optim.Adam(ps[2:], lr=0.02)],
    "by names": lambda ps: {"model": torch.optim.SGD(ps, lr=0.05, momentum=0.9)},
}
SCHEDULERS: dict[str, tuple[str, Callable[[Any], Any]] | None] = {
    "none": None,
    "by step": ("step", lambda o: lr_scheduler.StepLR(o, 3, 0.7)),
    "by epoch": ("epoch", lambda o: lr_scheduler.ExponentialLR(o, 0.6)),
    "one cycle": ("samples", lambda o: lr_scheduler.OneCycleLR(o, 0.08, total_steps=40)),
    "plateau": ("loss", lambda o: lr_scheduler.ReduceLROnPlateau(o, factor=0.5, patience=0)),
    "tracked": ("", lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
}

# --- data ------------------------------------------------------------------------------------------------------------

NOISE: dict[str, Callable[[], Any]] = {
    "none": lambda: 0.0,
    "torch": lambda: torch.randn(3, dtype=torch.float64) * 0.1,
    "numpy": lambda: np.random.standard_normal() * 0.1,
    "python": lambda: random.gauss(0, 0.1),
    "all": lambda: torch.rand(()) * 0.1 + np.random.rand() * 0.1 + random.random() * 0.1,
}


class Samples:
    """A map-style dataset that adds noise."""

    def __init__(self, noise: Callable[[], Any]) -> None:
        self._noise = noise

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = DATA[index]
        return x + self._noise(), y


class AtOnce(Samples):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Sequence(Samples):
    """A stream, in another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return (self[(i + 5 * self.epoch) % SAMPLES] for i in range(SAMPLES))


class FromCursor(Sequence):
    def from_cursor(self, cursor: int) -> Iterator[Any]:
        return (self[(i + 5 * self.epoch) % SAMPLES] for i in range(cursor, SAMPLES))


def as_dict(samples: list[Any]) -> dict[str, torch.Tensor]:
    x, y = default_collate(samples)
    return {"y": y, "x": x}


DATASETS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "tensors": (lambda _: DATA, {}),
    "map": (Samples, {}),
    "at once": (AtOnce, {}),
    "collated": (Samples, {"collate_fn": as_dict}),
    "in order": (Samples, {"shuffle": False}),
    "drawn": (Samples, {"replacement": True, "num_samples": 18}),
    "stream": (Sequence, {}),
    "stream from cursor": (FromCursor, {"collate_fn": as_dict}),
}
BATCHES: dict[str, dict[str, Any]] = {
    "whole": {"global_batch_size": BATCH},
    "drop last": {"global_batch_size": BATCH, "drop_last": True},
    "micro 1": {"global_batch_size": 5, "micro_batch_size": 1},
    "micro 3": {"global_batch_size": 8, "micro_batch_size": 3},
    "by hand": {"global_batch_size": 3, "accumulate": 2, "drop_last": True},
    "of one": {"global_batch_size": 1, "accumulate": 3, "drop_last": True},
}

AXES: dict[str, Apart] = {
    "model": tuple(MODELS),
    "optimizer": tuple(OPTIMIZERS),
    "schedule": tuple(SCHEDULERS),
    "noise": tuple(NOISE),
    "data": tuple(DATASETS),
    "batches": tuple(BATCHES),
    "loop": ("epochs", "enumerate", "iterations", "next"),
    "gradients": ("as they are", "clipped", "summed and clipped", "summed and scaled", "decayed"),
    "weight": ("none", "of samples"),
    "trained": ("all", "unfrozen", "in turns", "a group added", "frozen from the start"),
    "other": ("nothing", "average", "teacher", "distance to the start"),
    "state": ("empty", "counts", "tensors", "lists", "restored"),
    "evaluated": ("never", "after the epoch", "before the epoch", "between steps"),
    "by hand": ("nothing", "rate by steps", "rate of an epoch", "momenta forgotten", "clamped", "reset", "noisy"),
}

APART: list[tuple[str, Apart, str, Apart]] = [
    # documented to depend on the number of ranks or batches, or to be refused
    ("batches", ("micro 1", "micro 3"), "model", ("spectral norm", "counting")),
    ("batches", ("micro 1", "micro 3"), "loop", ("next", "enumerate")),
    ("batches", ("micro 1", "micro 3"), "gradients", ("decayed",)),
    ("batches", ("micro 1", "micro 3", "by hand", "of one"), "optimizer", ("by names",)),
    ("batches", ("by hand", "of one"), "weight", ("of samples",)),
    ("optimizer", ("by names",), "weight", ("of samples",)),
    ("loop", ("iterations", "next"), "schedule", ("plateau",)),
    ("loop", ("iterations", "next"), "trained", ("unfrozen", "in turns", "a group added")),
    ("loop", ("iterations", "next"), "evaluated", ("after the epoch", "before the epoch")),
    ("loop", ("iterations", "next"), "by hand", ("rate of an epoch", "momenta forgotten", "reset", "noisy")),
    ("data", ("tensors",), "noise", ("torch", "numpy", "python", "all")),
    # torch's schedulers do not know of a group added later
    ("trained", ("a group added",), "schedule", ("by step", "by epoch", "one cycle", "tracked", "plateau")),
    ("optimizer", ("adagrad",), "schedule", ("one cycle",)),
    # a rate by hand is the scheduler's, or the script's
    ("by hand", ("rate by steps",), "schedule", ("one cycle",)),
]


def together(choices: Composition) -> bool:
    """Whether these choices, of some of the axes, go together."""
    return not any(choices.get(a) in of_a and choices.get(b) in of_b for a, of_a, b, of_b in APART)


def covering(seed: int) -> list[dict[str, str]]:
    """Compositions, drawn greedily, in which any two choices that go together occur together."""
    drawn = random.Random(seed)
    singles = [(axis, choice) for axis, choices in AXES.items() for choice in choices]
    both = [(a, b) for a, b in itertools.combinations(singles, 2) if a[0] != b[0] and together(dict([a, b]))]
    missing = dict.fromkeys(map(frozenset, both))  # a set in a fixed order
    found = []
    while missing:
        one = dict(drawn.choice([*missing]))
        for axis in drawn.sample([*AXES], len(AXES)):
            if axis not in one:
                fit = [
                    choice for choice in drawn.sample(AXES[axis], len(AXES[axis])) if together({**one, axis: choice})
                ]
                one[axis] = max(fit, key=lambda c: sum(frozenset([(axis, c), o]) in missing for o in one.items()))
        found.append(one)
        for pair in itertools.combinations(one.items(), 2):
            missing.pop(frozenset(pair), None)
    return found


# --- the script ------------------------------------------------------------------------------------------------------


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


# --- the plain loop --------------------------------------------------------------------------------------------------


class PlainLoop(Plain):
    """A plain session with these data and loops."""

    def __init__(self, models: Any, optimizers: Any, schedulers: Any = None, **options: Any) -> None:
        super().__init__(models, optimizers, schedulers, **options)
        self._model = models["model"] if isinstance(models, dict) else models
        self._evaluating = False

    def loader(self, data: Any, **options: Any) -> PlainBatches:
        self._batches = PlainBatches(self, data, options)
        return self._batches

    stream = loader

    def epochs(self, count: int, **measures: Callable[[], float]) -> Iterator[int]:
        for self.epoch in range(count):
            rng.seed_all(mix(SEED, self.epoch, rng.OF_A_TURN))
            yield self.epoch
            self.epoch_ends({name: measure() for name, measure in measures.items()})

    def epoch_ends(self, measured: dict[str, float]) -> None:
        for scheduler in self._schedulers.values():
            if self._schedule == "epoch":
                scheduler.step()
            elif self._schedule in measured:
                scheduler.step(measured[self._schedule])

    def iterations(self, count: int) -> Iterator[int]:
        self.epoch, todo = 0, list[list[range]]()
        for iteration in range(count):
            if iteration and not todo:
                self.epoch_ends({})
                self.epoch += 1
            todo = todo or self._batches.steps()
            self._batches.begin_turn(todo.pop(0))
            yield iteration

    def step(self, _loss: Any = None, name: str | None = None, **_: Any) -> bool:
        """Optimizers that are stepped together are clipped together."""
        self.steps += not self.has_stepped
        self.has_stepped = True
        ours = [*self._optimizers] if name is None else [name]
        if self._max_norm < math.inf:
            groups = [group for one in ours for group in self._optimizers[one].param_groups]
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], self._max_norm)
            self._max_norm = math.inf
        for one in ours:
            self._optimizers[one].step()
            if self._schedule in ("step", "samples") and one in self._schedulers:
                self._schedulers[one].step()
        return True

    def evaluate(self, data: Any, function: Any, batch_size: int) -> dict[str, float]:
        self._model.eval()
        total = 0.0
        with torch.no_grad():
            for start in range(0, len(data), batch_size):
                batch = [tensor[start : start + batch_size] for tensor in data.tensors]
                total += function(batch)["loss"].item() * len(batch[0])
        self._model.train()
        return {"loss": total / len(data)}


class PlainBatches:
    """One process's batches; it splits none into micro-batches."""

    def __init__(self, plain: PlainLoop, data: Any, options: dict[str, Any]) -> None:
        self._plain, self._data, self._options = plain, data, options
        self._turn: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Of an epoch; in a loop by iteration, of a step."""
        return self._loaded(itertools.chain(*self.steps())) if self._turn is None else self._turn

    def next(self) -> Any:
        """In a loop by iteration."""
        assert self._turn is not None
        return next(self._turn)

    def begin_turn(self, step: list[range]) -> None:
        """Of a loop by iteration."""
        self._turn = self._loaded(step)

    def steps(self) -> list[list[range]]:
        """Of an epoch: the positions in each of a step's batches."""
        options = self._options
        size, parts = options["global_batch_size"], options.get("accumulate", 1)
        samples = options.get("num_samples", SAMPLES)
        cuts = [range(start, min(start + size, samples)) for start in range(0, samples, size)]
        steps = [cuts[first : first + parts] for first in range(0, len(cuts), parts)]
        return [one for one in steps if not options.get("drop_last") or sum(map(len, one)) == size * parts]

    def _loaded(self, batches: Iterable[range]) -> Iterator[Any]:
        epoch, order, samples = self._plain.epoch, self._order(), list[Any]()
        for positions in batches:
            self._plain.has_stepped = False
            for position in positions:
                if isinstance(self._data, Sequence):
                    rng.seed_all(mix(SEED, epoch, position))
                else:
                    sample_streams.begin(SEED, epoch, position)
                samples.append(self._data[order[position]])
            yield self._options.get("collate_fn", default_collate)(samples)
            samples.clear()

    def _order(self) -> list[int]:
        epoch = self._plain.epoch
        if isinstance(self._data, Sequence):
            return [(i + 5 * epoch) % SAMPLES for i in range(SAMPLES)]
        if self._options.get("shuffle") is False:
            return list(range(SAMPLES))
        if "num_samples" in self._options:
            return [int(i) for i in Drawn(SEED, SAMPLES, SAMPLES).indices(epoch, 0, SAMPLES)]
        return [int(i) for i in permutation(SEED, epoch, SAMPLES)]


def scripted(chosen: Composition, made: Callable[..., Any]) -> Result:
    """A run of the composition."""
    return Composed(made, chosen).run()


def storm(drawn: random.Random) -> tuple[int, list[End]]:
    """The initial number of ranks, and how generations end."""
    ends = [
        End(drawn.randrange(1, 15), _flags(drawn), _flags(drawn), drawn.randrange(3), drawn.random() < 0.3)
        for _ in range(drawn.randrange(4))
    ]
    return drawn.randrange(1, 4), ends


def _flags(drawn: random.Random) -> tuple[bool, ...]:
    return tuple(drawn.random() < 0.5 for _ in range(drawn.randrange(1, 4)))


def assert_stormy(chosen: Composition, seed: int) -> None:
    """Through one storm, and through another one that resumes from the first one's state after some step."""
    drawn = random.Random(seed)
    last = int(scripted(chosen, PlainLoop)["steps.0"])
    kept = assert_equal(chosen, *storm(drawn), keep_at=drawn.randrange(1, last))
    assert_equal(chosen, *storm(drawn), begin=kept)


def assert_equal(chosen: Composition, count: int, ends: Iterable[End], **options: Any) -> dict[str, Any] | None:
    """The ranks have what the plain loop has, and agree to the last bit; returns the state kept on the way."""
    expected = scripted(chosen, PlainLoop)
    world, ranks = in_world(lambda: scripted(chosen, session), count, [*ends], **options)
    for rank in ranks:
        assert rank.keys() == expected.keys()
        for name, value in expected.items():
            for other, tolerance in ((ranks[0][name], 0.0), (value, 1e-9)):
                message = partial("{}: {}".format, name)
                torch.testing.assert_close(rank[name], other, rtol=tolerance, atol=tolerance, msg=message)
    return world.kept
