"""Refused when the session is created."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import pilot.train
from tests.equivalence.rows import Row, Script, Topic

Parts = tuple[nn.Module, torch.optim.Optimizer]
ROWS: list[Row] = []
DATA = TensorDataset(torch.ones(8, 2))


def _refused(name: str, line: str, instead: str) -> Callable[[Callable[[], Parts]], None]:
    def add(parts: Callable[[], Parts]) -> None:
        ROWS.append(Script(name=name, refused=line, instead=instead, elastic=lambda: _session(parts())))

    return add


def _session(parts: Parts) -> None:
    pilot.train.session(*parts)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@_refused(
    "a trained parameter that the optimizer has not",
    "parameter 1.weight requires a gradient",
    "requires_grad_(False), or give it to the optimizer",
)
def more_in_the_model() -> Parts:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    return model, sgd(model[0].parameters())


@_refused("LBFGS", "LBFGS.step needs a closure", "an optimizer whose step needs no closure")
def lbfgs() -> Parts:
    model = nn.Linear(2, 1)
    return model, torch.optim.LBFGS(model.parameters())


class WithoutRate(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"beta": 0.9})


@_refused("an optimizer without learning rates", "WithoutRate has a parameter group without 'lr'", "group['lr'] = 1.0")
def without_rates() -> Parts:
    model = nn.Linear(2, 1)
    return model, WithoutRate(model.parameters())


class OuterStates(torch.optim.SGD):
    """Like an optimizer around another one, whose states it returns together."""

    def state_dict(self) -> dict[str, Any]:
        its = super().state_dict()
        return {"fast": its["state"], "slow": {}, "param_groups": its["param_groups"]}


class Around(torch.optim.Optimizer):
    """It has another one's groups and state, and no others of its own."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.param_groups, self.state, self.defaults = inner, inner.param_groups, inner.state, {}

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@_refused(
    "an optimizer around another one, without Optimizer.__init__",
    "Around does not call torch.optim.Optimizer.__init__",
    "the inner optimizer, and session.track",
)
def around() -> Parts:
    model = nn.Linear(2, 1)
    return model, Around(torch.optim.SGD(model.parameters(), lr=0.1))


@_refused(
    "an optimizer whose state_dict() has another form",
    r"OuterStates.state_dict\(\) has no 'state'",
    "the inner optimizer, and session.track",
)
def outer_states() -> Parts:
    model = nn.Linear(2, 1)
    return model, OuterStates(model.parameters(), lr=0.1)


@_refused("a lazy layer without a shape yet", "0.weight has no shape yet", "one batch through the model first")
def lazy() -> Parts:
    model = nn.Sequential(nn.LazyLinear(1))
    return model, sgd(model.parameters())


@_refused(
    "a buffer made in torch.inference_mode()", "buffer mean was made in torch.inference_mode", "`torch.no_grad()`"
)
def of_inference() -> Parts:
    model = nn.Linear(2, 1)
    with torch.inference_mode():
        model.register_buffer("mean", torch.zeros(2))
    return model, sgd(model.parameters())


@_refused("parameters on the meta device", "weight is on the meta device", "model.to_empty")
def meta() -> Parts:
    model = nn.Linear(2, 1, device="meta")
    return model, sgd(model.parameters())


@_refused("a quantized tensor", "buffer table is quantized", "train before it is quantized")
def quantized() -> Parts:
    model = nn.Linear(2, 1)
    model.register_buffer("table", torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8))
    return model, sgd(model.parameters())


@_refused("a buffer of a sparse layout", "buffer mask is of layout", "a dense one")
def sparse_layout() -> Parts:
    model = nn.Linear(2, 1)
    model.register_buffer("mask", torch.eye(2).to_sparse())
    return model, sgd(model.parameters())


@_refused("Embedding(sparse=True)", "module 0 makes sparse gradients", "leave out sparse=True")
def sparse_embedding() -> Parts:
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True))
    return model, sgd(model.parameters())


@_refused("Embedding(max_norm=...)", "module 0 has max_norm=1.0", "limit the norms after `session.step`")
def renormalizing() -> Parts:
    model = nn.Sequential(nn.Embedding(4, 2, max_norm=1.0))
    return model, sgd(model.parameters())


@_refused("Embedding(scale_grad_by_freq=True)", "module 0 has scale_grad_by_freq=True", "leave it out")
def scaling_by_frequency() -> Parts:
    model = nn.Sequential(nn.EmbeddingBag(4, 2, scale_grad_by_freq=True))
    return model, sgd(model.parameters())


@_refused("capturable=True, on CPU", r"Adam\(capturable=True\)", "leave it out")
def capturable() -> Parts:
    model = nn.Linear(2, 1)
    return model, torch.optim.Adam(model.parameters(), capturable=True)


@_refused("differentiable=True", r"Adam\(differentiable=True\)", "leave it out")
def differentiable() -> Parts:
    model = nn.Linear(2, 1)
    return model, torch.optim.Adam(model.parameters(), differentiable=True)


@_refused("SparseAdam", "SparseAdam", "Adam")
def sparse_adam() -> Parts:
    model = nn.Linear(2, 1)
    return model, torch.optim.SparseAdam(list(model.parameters()))


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"log": open}

    def set_extra_state(self, _state: Any) -> None:
        """Does nothing."""


@_refused(
    "a get_extra_state that cannot be saved",
    r"model.state_dict\(\)\['0._extra_state'\]\['log'\]",
    "tensors, numbers, ...",
)
def extra_state() -> Parts:
    model = nn.Sequential(Extra(2, 1))
    return model, sgd(model.parameters())


def _scheduled(kind: Callable[[torch.optim.Optimizer], Any], schedule: str | None) -> Callable[[], None]:
    def script() -> None:
        model = nn.Linear(2, 1)
        optimizer = sgd(model.parameters())
        pilot.train.session(model, optimizer, kind(optimizer), schedule=schedule)

    return script


def _loading(dataset: object = DATA, **options: Any) -> Callable[[], None]:
    def script() -> None:
        model = nn.Linear(2, 1)
        session = pilot.train.session(model, sgd(model.parameters()))
        session.loader(dataset, **({"global_batch_size": 4} | options))

    return script


def _streaming(source: Any) -> Callable[[], None]:
    def script() -> None:
        model = nn.Linear(2, 1)
        pilot.train.session(model, sgd(model.parameters())).stream(source, global_batch_size=4)

    return script


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(DATA.tensors[0])


class ByEpoch:
    """Is told the epoch in each step."""

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


def plateau(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


ROWS += [
    Script(name=name, refused=line, instead=instead, elastic=script)
    for name, line, instead, script in [
        ("a scheduler without schedule=", "schedule='step'.*schedule='epoch'", "say which", _scheduled(step_lr, None)),
        (
            "a schedule that is neither",
            "schedule must be",
            "'step', 'samples' or 'epoch'",
            _scheduled(step_lr, "batch"),
        ),
        (
            "a scheduler whose step needs the epoch (timm's)",
            "ByEpoch.step needs epoch",
            "step it, and session.track",
            _scheduled(ByEpoch, "epoch"),
        ),
        (
            "a scheduler of one's own without state_dict",
            "Warmup has no state_dict",
            "state_dict and load_state_dict, or session.steps",
            _scheduled(Warmup, "step"),
        ),
        ("ReduceLROnPlateau by step", "needs a measure", "schedule='loss'", _scheduled(plateau, "step")),
        ("an IterableDataset in session.loader", "session.stream", "`session.stream`", _loading(Endless())),
        (
            "a DataLoader with a sampler of its own in session.loader",
            "no DataLoader with a RandomSampler",
            "one with shuffle=",
            _loading(DataLoader(DATA, sampler=RandomSampler(DATA, replacement=True))),
        ),
        (
            "a DataLoader that makes batches in session.stream",
            "batch_size=None",
            "DataLoader(..., batch_size=None)",
            _streaming(DataLoader(DATA, batch_size=4)),
        ),
        ("sampler", "takes no sampler", "Subset, or replacement=True", _loading(sampler=RandomSampler(DATA))),
        ("batch_sampler", "takes no batch_sampler", "global_batch_size", _loading(batch_sampler=[[0, 1]])),
        ("generator", "takes no generator", "the session's seed", _loading(generator=torch.Generator())),
        ("in_order=False", "in_order=False", "leave it out", _loading(in_order=False, num_workers=1)),
        ("an option that there is not", "no option shufle", "", _loading(shufle=True)),
        ("batch_size and global_batch_size", "either batch_size", "one of them", _loading(batch_size=2)),
        ("timeout without workers", "timeout is how long to wait", "num_workers", _loading(timeout=5)),
    ]
]
TOPIC = Topic(110, "Refused when the session is made", ROWS)
