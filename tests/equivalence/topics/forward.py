"""What forward changes: buffers and extra states, each rank's own. A void step leaves them unchanged."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.equivalence.recipe import Recipe, square
from tests.equivalence.rows import Row, Topic
from tests.equivalence.topics.modules import normed


def spectral() -> nn.Module:
    return nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 5)), nn.Tanh(), nn.Linear(5, 1))


class Counts(nn.Module):
    """A buffer of integers, one that is not saved, and a state that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.trained = nn.Linear(3, 1), 0
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("constant", torch.ones(3), persistent=False)

    def get_extra_state(self) -> Any:
        return {"trained": self.trained, "name": "extra"}

    def set_extra_state(self, state: Any) -> None:
        self.trained = state["trained"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.trained += self.training
        return self.inner(x * self.constant * (1 + 0.01 * self.trained))


class History(nn.Module):
    """A buffer that grows in place with each forward: by a weight, or by an output."""

    def __init__(self, *, of_outputs: bool = False) -> None:
        super().__init__()
        self.inner, self.of_outputs = nn.Linear(3, 1), of_outputs
        self.register_buffer("past", torch.zeros(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x)
        self.past.resize_(len(self.past) + 1)
        self.past[-1] = (output if self.of_outputs else self.inner.weight).detach().mean()
        return output + 0.1 * self.past.mean()


def observers_by_channel() -> nn.Module:
    """The ranges get their shape with the first batch."""
    from torch.ao.quantization import FakeQuantize, MovingAveragePerChannelMinMaxObserver

    by_channel = {"dtype": torch.qint8, "qscheme": torch.per_channel_symmetric, "ch_axis": 1}
    return nn.Sequential(
        nn.Linear(3, 5),
        FakeQuantize(MovingAveragePerChannelMinMaxObserver, quant_min=-128, quant_max=127, **by_channel),
        nn.Tanh(),
        nn.Linear(5, 1),
    )


OWN_BATCH = "each rank normalizes over its own batch"
ROWS: list[Row] = [
    Recipe(name="spectral norm (parametrizations)", model=spectral),
    Recipe(name="batch norm", model=lambda: normed(nn.BatchNorm1d(4)), different=OWN_BATCH),
    Recipe(name="batch norm, micro-batches", model=lambda: normed(nn.BatchNorm1d(4)), micro=2, different=OWN_BATCH),
    Recipe(
        name="SyncBatchNorm",
        model=lambda: nn.SyncBatchNorm.convert_sync_batchnorm(normed(nn.BatchNorm1d(4))),
        different=OWN_BATCH,
    ),
    Recipe(name="a buffer of integers, a buffer that is not saved, get_extra_state", model=Counts, core=True),
    Recipe(name="a buffer that grows in place, in forward", model=History),
    Recipe(
        name="a bank of outputs that grows, in forward",
        model=lambda: History(of_outputs=True),
        different="each rank keeps those of its own batches",
    ),
    Recipe(
        name="fake quantization by channel",
        model=observers_by_channel,
        different="each rank observes its own batch",
        dtype=torch.float32,
        loss=lambda m, x: square(m, x.float()),
    ),
]
TOPIC = Topic(35, "What forward changes", ROWS)
