"""Models and data for the data plane's benchmarks."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

BATCH = 32


def mlp(layers: int, width: int) -> nn.Module:
    """About layers · width² parameters."""
    blocks = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*blocks, nn.Linear(width, 10))


def cnn() -> nn.Module:
    """A small CNN on 1 × 16 × 16 images."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 16, 16)),
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 64, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def normed() -> nn.Module:
    """20 convolutions of 8 channels, each with batch norm: about 80 small tensors and 60 buffers."""
    blocks = [m for _ in range(20) for m in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())]
    first, last = nn.Conv2d(1, 8, 3), nn.Linear(8 * 14 * 14, 10)
    return nn.Sequential(nn.Unflatten(1, (1, 16, 16)), first, *blocks, nn.Flatten(), last)


def many() -> nn.Module:
    """300 small tensors."""
    return nn.Sequential(*(module for _ in range(149) for module in (nn.Linear(64, 64), nn.ReLU())), nn.Linear(64, 10))


SUBJECTS = {
    "tiny": (lambda: mlp(1, 64), 64),
    "1M": (lambda: mlp(4, 512), 512),
    "4M": (lambda: mlp(4, 1024), 1024),
    "25M": (lambda: mlp(6, 2048), 2048),
    "100M": (lambda: mlp(6, 4096), 4096),
    "small CNN": (cnn, 256),
    "batch norms": (normed, 256),
    "300 small tensors": (many, 64),
}
"""Name → (maker of the model, width of its input)."""


def make(name: str) -> nn.Module:
    """A subject's model, the same in each process."""
    torch.manual_seed(0)
    return SUBJECTS[name][0]()


def data(name: str, samples: int) -> TensorDataset:
    """Random inputs and labels for a subject."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(samples, SUBJECTS[name][1], generator=generator)
    return TensorDataset(inputs, torch.randint(0, 10, (samples,), generator=generator))


class Endless(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A subject's data in an epoch that is long enough for any measurement: a few samples, again and again."""

    def __init__(self, name: str) -> None:
        self._inputs, self._labels = data(name, 32 * BATCH).tensors

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self._inputs[index % len(self._inputs)], self._labels[index % len(self._labels)]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum: its state is as large as the model."""
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
