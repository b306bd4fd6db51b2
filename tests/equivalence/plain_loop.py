"""The session interface that scripts use, in plain torch: it steps torch's own objects, in one process."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from pilot.train.data import rng
from pilot.train.data.order import Drawn, permutation
from pilot.train.data.sampler import mix
from tests import sample_streams
from tests.equivalence.rows import BATCH, SAMPLES, SEED

MOST_DRAWN = 1000


class Plain:
    """A plain session."""

    def __init__(self, models: Any, optimizers: Any, schedulers: Any = None, **options: Any) -> None:
        self._model = models.get("model") if isinstance(models, dict) else models
        self._optimizers, self._schedulers = _named(optimizers), _named(schedulers)
        self._schedule = options.get("schedule")
        self._scaler = options.get("scaler")
        self._max_norm = math.inf
        self.state: dict[str, Any] = {}
        self.steps = 0
        self.has_stepped = False
        self._phases = 0
        self._summed = self._stopping = self._stopped = False
        self._reported: dict[str, float] = {}
        self.ended: list[int] = []
        """After how many steps epochs have ended."""

    def loader(self, data: Any, **options: Any) -> PlainBatches:
        self._batches = PlainBatches(self, data, options)
        return self._batches

    def stream(self, data: Any, **options: Any) -> PlainBatches:
        return self.loader(data, shuffle=False, **options)

    def track(self, *_: Any) -> None:
        pass

    def on_restore(self, *_: Any) -> None:
        pass

    def clip_grad_norm(self, max_norm: float) -> None:
        self._max_norm = max_norm

    def epochs(self, count: int) -> Iterator[int]:
        for self.epoch in range(count):
            rng.seed_all(mix(SEED, self.epoch, rng.OF_A_TURN))
            yield self.epoch
            self.epoch_ends()
            if self._stopping:
                break

    def report(self, **values: float) -> None:
        self._reported = values

    def epoch_ends(self) -> None:
        self.ended.append(self.steps)
        for scheduler in self._schedulers.values():
            if self._schedule == "epoch":
                scheduler.step()
            elif self._schedule in self._reported:
                scheduler.step(self._reported[self._schedule])

    def iterations(self, count: int) -> Iterator[int]:
        self.epoch, todo = 0, list[range]()
        for iteration in range(count):
            if iteration and not todo:
                self.epoch_ends()
                self.epoch += 1
            todo = todo or self._batches.steps()
            self._batches.begin_turn(todo.pop(0))
            yield iteration
            if self._stopped:
                break

    def stop(self) -> None:
        self._stopping = True

    def batch_begins(self) -> None:
        self._phases, self.has_stepped = 0, False

    def sum(self, *_: Any, **__: Any) -> bool:
        """From here on all ranks draw the same numbers."""
        self._summed = True
        rng.seed_all(mix(SEED, self.steps - self.has_stepped, self._phases, rng.OF_ALL_RANKS))
        return True

    def step(self, _loss: Any = None, name: str | None = None, **_: Any) -> bool:
        """Optimizers that are stepped together are clipped together."""
        if not self._summed:
            self.sum()
        self._summed, self._stopped = False, self._stopping
        self._phases += 1
        self.steps += not self.has_stepped
        self.has_stepped = True
        ours = [*self._optimizers] if name is None else [name]
        if self._max_norm < math.inf:
            self._clip(ours)
        if self._scaler is None:
            for one in ours:
                self._optimizers[one].step()
        if self._scaler is None or self._step_scaled(ours):
            for one in ours:
                if self._schedule in ("step", "samples") and one in self._schedulers:
                    self._schedulers[one].step()
        return True

    def _clip(self, ours: list[str]) -> None:
        groups = [group for one in ours for group in self._optimizers[one].param_groups]
        if self._scaler is not None:
            for one in ours:
                self._scaler.unscale_(self._optimizers[one])
        nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], self._max_norm)
        self._max_norm = math.inf

    def _step_scaled(self, ours: list[str]) -> bool:
        scale = self._scaler.get_scale()
        for one in ours:
            self._scaler.step(self._optimizers[one])
        self._scaler.update()
        return bool(self._scaler.get_scale() >= scale)

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

    def __init__(self, plain: Plain, data: Any, options: dict[str, Any]) -> None:
        self._plain, self._options = plain, options
        self.dataset = data.dataset if isinstance(data, DataLoader) else data
        self._turn: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Of an epoch; in a loop by iteration, of a step."""
        return self._loaded(self.steps()) if self._turn is None else self._turn

    def enumerate(self) -> Iterator[tuple[int, Any]]:
        """Of an epoch."""
        return enumerate(self)

    def next(self) -> Any:
        """In a loop by iteration."""
        assert self._turn is not None
        return next(self._turn)

    def begin_turn(self, step: range) -> None:
        """Of a loop by iteration."""
        self._turn = self._loaded([step])

    def steps(self) -> list[range]:
        """Of an epoch: the positions of each."""
        options = self._options
        size = options.get("global_batch_size", BATCH)
        samples = options.get("num_samples", MOST_DRAWN if options.get("replacement") else SAMPLES)
        steps = [range(start, min(start + size, samples)) for start in range(0, samples, size)]
        return [one for one in steps if not options.get("drop_last") or len(one) == size]

    def _loaded(self, batches: Iterable[range]) -> Iterator[Any]:
        epoch, order, samples = self._plain.epoch, self._order(), list[Any]()
        streamed = isinstance(self.dataset, IterableDataset)
        for positions in batches:
            self._plain.batch_begins()
            for position in positions:
                if streamed:
                    rng.seed_all(mix(SEED, epoch, position))
                    samples.append(self.dataset.samples[order[position]])
                else:
                    sample_streams.begin(SEED, epoch, position)
                    samples.append(self.dataset[order[position]])
            yield self._options.get("collate_fn", default_collate)(samples)
            samples.clear()

    def _order(self) -> list[int]:
        epoch = self._plain.epoch
        if isinstance(self.dataset, IterableDataset):
            return self.dataset.order(epoch)
        if self._options.get("shuffle") is False:
            return list(range(SAMPLES))
        if self._options.get("replacement"):
            draws = self._options.get("num_samples", MOST_DRAWN)
            return Drawn(SEED, SAMPLES, draws).indices(epoch, 0, draws).tolist()
        return [int(i) for i in permutation(SEED, epoch, SAMPLES)]


def _named(given: Any) -> dict[str, Any]:
    if isinstance(given, dict):
        return given
    return {} if given is None else {str(i): one for i, one in enumerate(given if isinstance(given, list) else [given])}
