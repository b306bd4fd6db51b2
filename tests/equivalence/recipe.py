"""Rows with an ordinary loop over one model: elastic script and plain loop are built from the same parts."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

import pilot.train
from pilot.train.data import rng
from pilot.train.data.order import permutation
from pilot.train.data.sampler import mix
from tests import sample_streams
from tests.equivalence.history import Part, Step, by_epoch
from tests.equivalence.rows import DEVICE, EPOCHS, SAMPLES, SEED, Ran, Row, Tensors

Optimizers = Callable[[Any], torch.optim.Optimizer]
Schedulers = Callable[[torch.optim.Optimizer], Any]
Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]
Sums = dict[nn.Parameter, torch.Tensor]
BY_STEP = ("step", "samples")
"""Schedules that advance with each step that was applied. (The batches of all rows but those per node are global.)"""


def mlp() -> nn.Module:
    """Three ordinary layers."""
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """An optimizer with state."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def square(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """A mean over the batch."""
    output = model(x)
    return (output - 0.5).abs().square().mean()


@dataclass(frozen=True, kw_only=True)
class Recipe(Row):
    """Training subject and procedure.

    Parameters
    ----------
    fitted : what a script does with its model (each run gets a copy); may return another one
    features : per sample, as float64; ``data`` makes others, shape (SAMPLES, ...)
    dataset, collate : of ``data``; what a batch is made of and by
    each_epoch : called with the dataset and the epoch's number before its first batch
    order : an epoch's samples, by the epoch's number
    dtype : of the model; None: as ``model`` makes it
    scheduler, schedule : of the optimizer; what a plain loop counts by it
    on_sums : what is done to the model and its summed gradients before the step
    before_step : what else is between backward and the step; ``on_sums`` is then what it does
    after_step : gets whether it was applied
    backward : of the loss
    feed : makes the loader of session and dataset
    factor : of the learning rate, by the number of nodes
    wire_dtype : in which gradients travel: each rank's is rounded, and so is their sum
    options, loader : of ``pilot.train.session`` and of ``feed``
    """

    model: Callable[[], nn.Module] = mlp
    fitted: Callable[[nn.Module], nn.Module | None] = field(default=lambda _model: None)
    optimizer: Optimizers = sgd
    loss: Loss = square
    features: tuple[int, ...] = (3,)
    data: Callable[[], torch.Tensor] | None = None
    dataset: Callable[[torch.Tensor], Any] = TensorDataset
    each_epoch: Callable[[Any, int], None] = field(default=lambda _dataset, _epoch: None)
    collate: Callable[[list[Any]], Any] = default_collate
    order: Callable[[int], Sequence[int]] = field(default=lambda epoch: permutation(SEED, epoch, SAMPLES).tolist())
    dtype: torch.dtype | None = torch.float64
    micro: int | None = None
    scheduler: Schedulers | None = None
    schedule: str | None = None
    scaler: Callable[[], torch.amp.GradScaler] | None = None
    on_sums: Callable[[nn.Module], None] | None = None
    before_step: Callable[[pilot.train.Session, nn.Module], object] | None = None
    after_step: Callable[[pilot.train.Session, bool], None] = field(default=lambda _session, _stepped: None)
    backward: Callable[[torch.Tensor, nn.Module], None] = field(default=lambda loss, _model: loss.backward())
    feed: Callable[..., Any] = field(default=lambda session, dataset, **options: session.loader(dataset, **options))
    factor: Callable[[int], float] = field(default=lambda _nodes: 1.0)
    wire_dtype: torch.dtype | None = None
    options: dict[str, Any] = field(default_factory=dict)
    loader: dict[str, Any] = field(default_factory=dict)

    # --- the elastic script ------------------------------------------------------------------------------------------

    def script(self) -> Ran:
        """See :class:`Row`."""
        model, optimizer, scheduler, scaler = self._made()
        session = pilot.train.session(
            model, optimizer, scheduler, schedule=self.schedule, scaler=scaler, seed=SEED, **self._options()
        )
        size = {"batch_size" if self.per_node else "global_batch_size": self.batch}
        dataset = self.dataset(self._data())
        loader = self.feed(session, dataset, **size, micro_batch_size=self.micro, **self.loader)
        for epoch in session.epochs(EPOCHS):
            self.each_epoch(dataset, epoch)
            for batch in loader:
                optimizer.zero_grad()
                self.backward(_scaled(self.loss(model, inputs(batch)), scaler), model)
                self._before_step(session, model)
                self.after_step(session, session.step())
            if self.schedule not in (None, "epoch", *BY_STEP):
                session.report(**{str(self.schedule): 1.0})
        return Ran(session, tensors_of(model, optimizer, scaler))

    def _before_step(self, session: pilot.train.Session, model: nn.Module) -> None:
        if self.before_step is not None:
            self.before_step(session, model)
        elif self.on_sums is not None and session.sum():
            self.on_sums(model)

    def prepare(self) -> None:
        """See :class:`Row`."""
        _prototype(self)

    # --- the plain loop ----------------------------------------------------------------------------------------------

    def plain(self, steps: Sequence[Step], member: int) -> Tensors:
        """See :class:`Row`. Each process has its own buffers, as with DDP's ``broadcast_buffers=False``."""
        model, optimizer, scheduler, scaler = self._made()
        buffers = Buffers(model)
        for epoch in by_epoch(steps):
            for step in epoch:
                buffers.formed(step.members)
                give_gradients(self._sums(step, model, optimizer, buffers, scaler), self.wire_dtype)
                if scaler is not None:
                    scaler.unscale_(optimizer)
                rng.seed_all(mix(SEED, step.number, 0, 1 << 62))  # the same on all ranks
                if self.on_sums is not None:
                    self.on_sums(model)
                with rates_times(self.factor(step.divided_by), optimizer):
                    stepped = _plain_step(optimizer, scaler)
                if scheduler is not None and self.schedule in BY_STEP and stepped:
                    scheduler.step()
            if scheduler is not None and self.schedule not in BY_STEP:
                scheduler.step(*([] if self.schedule == "epoch" else [1.0]))
        buffers.enter(member)
        return tensors_of(model, optimizer, scaler)

    def _sums(
        self, step: Step, model: nn.Module, optimizer: Any, buffers: Buffers, scaler: torch.amp.GradScaler | None
    ) -> list[Sums]:
        """By rank."""
        by_rank: defaultdict[int, Sums] = defaultdict(dict)
        for part in step.parts(self._full(step), self.micro):
            buffers.enter(part.member)
            batch = self._batch(step, part)
            seed(step, part)
            optimizer.zero_grad()
            self.backward(_scaled(self.loss(model, inputs(batch)), scaler), model)
            add(by_rank[part.rank], model.parameters(), part.weight)
            buffers.leave(part.member)
        return [by_rank[rank] for rank in sorted(by_rank)]

    def _batch(self, step: Step, part: Part) -> Any:
        """Each sample draws from its own streams."""
        dataset, samples = self.dataset(self._data()), []
        rng.seed_all(mix(SEED, step.epoch, 1 << 61))  # the same on all ranks
        self.each_epoch(dataset, step.epoch)
        for position, index in enumerate(self.order(step.epoch)[part.start : part.stop], part.start):
            sample_streams.begin(SEED, step.epoch, position)
            samples.append(dataset[index])
        return self.collate(samples)

    def _full(self, step: Step) -> int:
        return self.batch * step.divided_by if self.per_node else self.batch

    # --- both --------------------------------------------------------------------------------------------------------

    def _made(self) -> tuple[nn.Module, torch.optim.Optimizer, Any, torch.amp.GradScaler | None]:
        model = copy.deepcopy(_prototype(self))
        model = self.fitted(model) or model
        optimizer = self.optimizer(model.parameters())
        scheduler = self.scheduler(optimizer) if self.scheduler is not None else None
        return model, optimizer, scheduler, self.scaler() if self.scaler is not None else None

    def _options(self) -> dict[str, Any]:
        return self.options | ({"wire_dtype": str(self.wire_dtype)[6:]} if self.wire_dtype else {})

    def _data(self) -> torch.Tensor:
        if self.data is not None:
            return self.data()
        return torch.randn(SAMPLES, *self.features, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def __hash__(self) -> int:
        return hash(self.name)


@cache
def _prototype(recipe: Recipe) -> nn.Module:
    """Made once: threads share torch's generator."""
    torch.manual_seed(7)
    return recipe.model().to(DEVICE, recipe.dtype)


def inputs(batch: Any) -> torch.Tensor:
    """A batch is one tensor, a sequence with one, or a dict with it under ``x``."""
    if isinstance(batch, torch.Tensor):
        return batch.to(DEVICE)
    found: torch.Tensor = batch["x"] if isinstance(batch, dict) else batch[0]
    return found.to(DEVICE)


def seed(step: Step, part: Part) -> None:
    """Set the generators to their state at the time the script gets this batch."""
    rng.seed_all(mix(SEED, step.number, part.draws_as, *([part.number] if part.number else [])))


def add(sums: Sums, parameters: Iterable[nn.Parameter], weight: float) -> None:
    """Add the gradients times ``weight``; 16-bit ones in float32."""
    for p in parameters:
        if p.grad is None or not weight:
            continue
        if p in sums:
            sums[p].add_(p.grad, alpha=weight)
        else:
            wide = torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype
            sums[p] = p.grad.to(wide) * weight


def give_gradients(by_rank: Sequence[Sums], wire_dtype: torch.dtype | None = None) -> None:
    """The sums over the ranks, in rank order; a rank without a gradient contributes zeros."""
    rounded = wire_dtype if len(by_rank) > 1 else None
    for p in dict.fromkeys(p for sums in by_rank for p in sums):
        terms = [sums.get(p) for sums in by_rank]
        some = next(term for term in terms if term is not None)
        first, *others = [_rounded(torch.zeros_like(some) if term is None else term, rounded) for term in terms]
        p.grad = _rounded(sum(others, start=first), rounded).to(p.dtype)


def _rounded(numbers: torch.Tensor, to: torch.dtype | None) -> torch.Tensor:
    return numbers if to is None else numbers.to(to).to(numbers.dtype)


@contextmanager
def rates_times(factor: float, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Multiply the learning rates by ``factor``."""
    if factor == 1.0:  # an optimizer may set its own rate
        yield
        return
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor
    yield
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


class Buffers:
    """Each process has its own buffers (and extra states); a newcomer gets those of an earlier member."""

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [*model.buffers()]
        self._extras = [m for m in model.modules() if type(m).get_extra_state is not nn.Module.get_extra_state]
        self._of: dict[int, list[Any]] = {}
        self._first = self._copy()

    def formed(self, members: Sequence[int]) -> None:
        """The step is done by these processes."""
        old = [member for member in members if member in self._of]
        given = self._of[old[0]] if old else self._first
        self._of = {member: self._of.get(member) or copy.deepcopy(given) for member in members}

    def enter(self, member: int) -> None:
        """Load its buffers into the model."""
        kept = iter(self._of[member])
        for buffer in self._buffers:
            buffer.data = next(kept).clone()  # its shape may have changed
        for module in self._extras:
            module.set_extra_state(next(kept))

    def leave(self, member: int) -> None:
        """Save the model's current buffers."""
        self._of[member] = self._copy()

    def _copy(self) -> list[Any]:
        extras = [copy.deepcopy(module.get_extra_state()) for module in self._extras]
        return [*(buffer.detach().clone() for buffer in self._buffers), *extras]


def tensors_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None = None
) -> Tensors:
    """Everything trained: the model, the optimizer with its learning rates, and the scaler's scale; not what has no
    elements."""
    state = optimizer.state_dict()
    kept = {f"optimizer/{i}/{name}": value for i, row in state["state"].items() for name, value in row.items()}
    rates = {f"optimizer/lr/{i}": torch.as_tensor(g["lr"]) for i, g in enumerate(state["param_groups"]) if "lr" in g}
    scale = {} if scaler is None else {"scale": torch.tensor(scaler.get_scale())}
    found = {f"model/{name}": value for name, value in model.state_dict().items()} | kept | rates | scale
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    return {name: tensor.detach().clone() for name, tensor in tensors.items() if tensor.numel()}


def _scaled(loss: torch.Tensor, scaler: torch.amp.GradScaler | None) -> torch.Tensor:
    return loss if scaler is None else scaler.scale(loss)


def _plain_step(optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None) -> bool:
    """Return whether the step was applied: a loss scaler skips those whose gradients are not finite."""
    if scaler is None:
        optimizer.step()
        return True
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return bool(scaler.get_scale() >= before)
