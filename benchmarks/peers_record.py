"""What the scripts of the head-to-head share: their data, and a record of each step that a node has done."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from benchmarks.subjects import data

SUBJECT = "1M"
SAMPLES = 30_000
EPOCHS = 1_000_000
NODES = 3
SNAPSHOT_STEPS = 100
COMPARED_STEPS = 25
"""Every so many steps a record has sums of the parameters, which all nodes should have alike."""


class Numbered(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """The subject's samples, each with its number."""

    def __init__(self) -> None:
        self._inputs, self._labels = data(SUBJECT, SAMPLES).tensors

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self._inputs[index], self._labels[index], index


class Record:
    """One process's record, a line of JSON per step: time, step, sample numbers, and sometimes parameters' sums."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._file = (Path(os.environ["PEERS_FOLDER"]) / f"record.{os.getpid()}").open("a", buffering=1)

    def done(self, step: int, samples: torch.Tensor) -> None:
        """Record that ``step`` was applied here, with these samples of this node."""
        with torch.no_grad():
            sums = [float(p.double().sum()) for p in self._model.parameters()] if step % COMPARED_STEPS == 0 else []
        print(json.dumps([time.monotonic(), step, samples.tolist(), sums]), file=self._file)
