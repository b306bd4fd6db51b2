"""Refused when the session or its loader is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from tests.equivalence.loops import ONES, session, sgd
from tests.equivalence.refusing import Refusals
from tests.equivalence.rows import Topic

ROWS = Refusals()


def made(model: nn.Module | None = None, optimizer: Callable[..., Any] = sgd, **options: Any) -> Any:
    """A session for ``model``; ``options``: of the optimizer."""
    model = model or nn.Linear(2, 1)
    return session(model, optimizer(model.parameters(), **options))


# --- models and optimizers ---


@ROWS.script(
    "a trained parameter that the optimizer has not",
    "parameter 1.weight requires a gradient",
    "requires_grad_(False), or give it to the optimizer",
)
def more_in_the_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    session(model, sgd(model[0].parameters()))


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"beta": 0.9})


class OuterStates(torch.optim.SGD):
    """Like an optimizer around another one, whose states it returns together."""

    def state_dict(self) -> dict[str, Any]:
        its = super().state_dict()
        return {"fast": its["state"], "slow": {}, "param_groups": its["param_groups"]}


class Around(torch.optim.Optimizer):
    """It has another one's groups and state, and no others of its own."""

    def __init__(self, parameters: Any) -> None:
        inner = sgd(parameters)
        self.inner, self.param_groups, self.state, self.defaults = inner, inner.param_groups, inner.state, {}

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


for name, line, instead, kind, options in [
    ("LBFGS", "LBFGS.step needs a closure", "an optimizer whose step needs no closure", torch.optim.LBFGS, {}),
    (
        "an optimizer without learning rates",
        "WithoutRate has a parameter group without 'lr'",
        "group['lr'] = 1.0",
        WithoutRate,
        {},
    ),
    (
        "an optimizer around another one, without Optimizer.__init__",
        "Around does not call torch.optim.Optimizer.__init__",
        "the inner optimizer, and session.track",
        Around,
        {},
    ),
    (
        "an optimizer whose state_dict() has another form",
        r"OuterStates.state_dict\(\) has no 'state'",
        "the inner optimizer, and session.track",
        OuterStates,
        {"lr": 0.1},
    ),
    ("capturable=True, on CPU", r"Adam\(capturable=True\)", "leave it out", torch.optim.Adam, {"capturable": True}),
    ("differentiable=True", r"Adam\(differentiable=True\)", "leave it out", torch.optim.Adam, {"differentiable": True}),
    ("SparseAdam", "SparseAdam", "Adam", lambda parameters: torch.optim.SparseAdam(list(parameters)), {}),
]:
    ROWS.script(name, line, instead)(lambda kind=kind, options=options: made(optimizer=kind, **options))


def with_buffer(name: str, make: Callable[[], torch.Tensor]) -> nn.Module:
    model = nn.Linear(2, 1)
    model.register_buffer(name, make())
    return model


@torch.inference_mode()
def of_inference() -> torch.Tensor:
    return torch.zeros(2)


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"log": open}

    def set_extra_state(self, _state: Any) -> None:
        """Does nothing."""


def embedding(kind: Callable[..., nn.Module] = nn.Embedding, **options: Any) -> nn.Module:
    return nn.Sequential(kind(4, 2, **options))


MODELS: list[tuple[str, str, str, Callable[[], nn.Module]]] = [
    (
        "a lazy layer without a shape yet",
        "0.weight has no shape yet",
        "one batch through the model first",
        lambda: nn.Sequential(nn.LazyLinear(1)),
    ),
    (
        "a buffer made in torch.inference_mode()",
        "buffer mean was made in torch.inference_mode",
        "`torch.no_grad()`",
        lambda: with_buffer("mean", of_inference),
    ),
    (
        "parameters on the meta device",
        "weight is on the meta device",
        "model.to_empty",
        lambda: nn.Linear(2, 1, device="meta"),
    ),
    (
        "a quantized tensor",
        "buffer table is quantized",
        "train before it is quantized",
        lambda: with_buffer("table", quantized),
    ),
    (
        "a buffer of a sparse layout",
        "buffer mask is of layout",
        "a dense one",
        lambda: with_buffer("mask", torch.eye(2).to_sparse),
    ),
    (
        "Embedding(sparse=True)",
        "module 0 makes sparse gradients",
        "leave out sparse=True",
        lambda: embedding(sparse=True),
    ),
    (
        "Embedding(max_norm=...)",
        "module 0 has max_norm=1.0",
        "limit the norms after `session.step`",
        lambda: embedding(max_norm=1.0),
    ),
    (
        "Embedding(scale_grad_by_freq=True)",
        "module 0 has scale_grad_by_freq=True",
        "leave it out",
        lambda: embedding(nn.EmbeddingBag, scale_grad_by_freq=True),
    ),
    (
        "a get_extra_state that cannot be saved",
        r"model.state_dict\(\)\['0._extra_state'\]\['log'\]",
        "tensors, numbers, ...",
        lambda: nn.Sequential(Extra(2, 1)),
    ),
]
for name, line, instead, model in MODELS:
    ROWS.script(name, line, instead)(lambda model=model: made(model()))

# --- schedulers ---


class ByEpoch:
    """Gets the epoch in each step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, epoch: int) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.1 / (epoch + 1)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, _state: dict[str, Any]) -> None:
        return


class Warmup:
    """Owns the optimizer, and counts by itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer, self.count = optimizer, 0

    def step(self) -> None:
        self.count += 1
        self.optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, self.count / 10)


def step_lr(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 30)


def scheduled(kind: Callable[[torch.optim.Optimizer], Any], schedule: str | None) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model.parameters())
    session(model, optimizer, kind(optimizer), schedule=schedule)


ROWS.script("a scheduler without schedule=", "schedule='step'.*schedule='epoch'", "one of these")(
    lambda: scheduled(step_lr, None)
)
ROWS.script("a schedule that is neither", "schedule must be", "'step', 'samples' or 'epoch'")(
    lambda: scheduled(step_lr, "batch")
)
ROWS.script(
    "a scheduler whose step needs the epoch (timm's)", "ByEpoch.step needs epoch", "step it, and session.track"
)(lambda: scheduled(ByEpoch, "epoch"))
ROWS.script(
    "a scheduler of one's own without state_dict",
    "Warmup has no state_dict",
    "state_dict and load_state_dict, or session.steps",
)(lambda: scheduled(Warmup, "step"))
ROWS.script("ReduceLROnPlateau by step", "needs a measure", "schedule='loss'")(
    lambda: scheduled(torch.optim.lr_scheduler.ReduceLROnPlateau, "step")
)

# --- loaders ---


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(ONES.tensors[0])


ROWS.script("a DataLoader that makes batches in session.stream", "batch_size=None", "DataLoader(..., batch_size=None)")(
    lambda: made().stream(DataLoader(ONES, batch_size=4), global_batch_size=4)
)
LOADERS: list[tuple[str, str, str, Any, dict[str, Any]]] = [
    ("an IterableDataset in session.loader", "session.stream", "`session.stream`", Endless(), {}),
    (
        "a DataLoader with a sampler of its own in session.loader",
        "no DataLoader with a RandomSampler",
        "one with shuffle=",
        DataLoader(ONES, sampler=RandomSampler(ONES, replacement=True)),
        {},
    ),
    ("sampler", "takes no sampler", "Subset, or replacement=True", ONES, {"sampler": RandomSampler(ONES)}),
    ("batch_sampler", "takes no batch_sampler", "global_batch_size", ONES, {"batch_sampler": [[0, 1]]}),
    ("generator", "takes no generator", "the session's seed", ONES, {"generator": torch.Generator()}),
    ("in_order=False", "in_order=False", "leave it out", ONES, {"in_order": False, "num_workers": 1}),
    ("an option that there is not", "no option shufle", "", ONES, {"shufle": True}),
    ("batch_size and global_batch_size", "either batch_size", "one of them", ONES, {"batch_size": 2}),
    ("shares= that there are not", "'balanced', 'free' or 'equal'", "one of these", ONES, {"shares": "fair"}),
    ("timeout without workers", "timeout is how long to wait", "num_workers", ONES, {"timeout": 5}),
]
for name, line, instead, data, options in LOADERS:
    ROWS.script(name, line, instead)(
        lambda data=data, options=options: made().loader(data, **{"global_batch_size": 4, **options})
    )
TOPIC = Topic(110, "Refused when the session is made", ROWS)
