"""What a script has trained after each step, as a checked process records it.

A record is made when the script comes for its next batch: with all that it did after the step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from pilot.core.run_identity import ALL_EPOCHS, PER_NODE
from pilot.io import loaded_code
from pilot.train.check import quiet
from pilot.train.check.settings import Run, perturb
from pilot.train.check.values import REPORTED, Values, flatten
from pilot.train.check.variables import of_script
from pilot.train.state.training import Training

_OURS = ("learning_rate", "loss_scale")
"""How the names of metrics begin that are the session's own."""
_LENGTH = 8
"""Bytes, before each record."""


class Record(msgspec.Struct):
    """After ``step`` steps of all, in ``epoch``; ``sums``: how many sums the step had; ``digits``: the relative
    rounding error of the coarsest type that was computed in; ``per_node``: a batch is; ``by_epoch``: the loop counts
    epochs; ``by_design``: what differs on several nodes by design; ``last``: the loop has ended.
    """

    step: int
    epoch: int
    sums: int
    digits: float
    values: Values
    per_node: bool
    by_epoch: bool
    by_design: list[str] = []
    last: bool = False


class Recorder:
    """Of one process, to a file of its own."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._path = Path(run.records)
        self._sums = 0
        self._said: Values | None = None
        self._types: set[torch.dtype] = set()

    def starts(self, training: Training) -> None:
        """The parameters are the initial ones, and the first batch comes next."""
        types = [one.dtype for one in training.model.parameters() if one.is_floating_point() or one.is_complex()]
        if self._run.rounding and types:
            perturb(training.model, max(torch.finfo(one).eps for one in types))
        self._types.update(types)
        torch.autograd.graph.saved_tensors_hooks(self._saved, _same).__enter__()

    def summed(self) -> None:
        """A sum of gradients is next."""
        self._sums += 1
        quiet.look_at_random_numbers()

    def applied(self, loss: float, metrics: Mapping[str, float]) -> None:
        """A step was applied."""
        named = {
            name: f"the {name.replace('_', ' ')}" if name.startswith(_OURS) else f"{REPORTED}{name}" for name in metrics
        }
        self._said = {"the loss": loss, **{named[name]: value for name, value in metrics.items()}}

    def settled(self, training: Training) -> None:
        """The script comes back from what it did since."""
        said, self._said = self._said, None
        if said is not None:
            self._write(training, said)

    def ended(self, training: Training) -> None:
        """The script's loop is over."""
        self._write(training, {}, last=True)

    def _write(self, training: Training, said: Values, *, last: bool = False) -> None:
        values = state_of(training) | said | of_script(training)
        digits = max((torch.finfo(one).eps for one in self._types), default=0.0)
        position = training.position
        per_node, by_epoch = (name in training.identity for name in (PER_NODE, ALL_EPOCHS))
        record = Record(
            position.step, position.epoch, self._sums, digits, values, per_node, by_epoch, quiet.seen(), last
        )
        self._sums = 0
        block = msgspec.msgpack.encode(record)
        with self._path.open("ab") as file:
            file.write(len(block).to_bytes(_LENGTH, "little") + block)
        note_files(self._run.records)

    def _saved(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd keeps this of a forward pass: its type is one that the script computes in."""
        if tensor.is_floating_point() or tensor.is_complex():
            self._types.add(tensor.dtype)
        return tensor


def read(path: Path) -> list[Record]:
    """The records of one process; without the last one, if it was killed while it wrote it."""
    rest = memoryview(path.read_bytes() if path.exists() else b"")
    found = []
    while len(rest) >= (end := _LENGTH + int.from_bytes(rest[:_LENGTH], "little")) > _LENGTH:
        found.append(msgspec.msgpack.decode(rest[_LENGTH:end], type=Record))
        rest = rest[end:]
    return found


def note_files(path: str) -> None:
    """Note, beside the records at ``path``, which of the user's files this process has loaded since the last call."""
    with Path(f"{path}-files").open("a") as lines:
        lines.writelines(f"{json.dumps(news.files)}\n" for news in loaded_code.news(""))


def files_of(path: str) -> dict[str, str]:
    """Return what a process noted so: the SHA-256 of each file, by its path."""
    noted = Path(f"{path}-files")
    lines = noted.read_text().splitlines() if noted.exists() else []
    return {file: version for line in lines for file, version in json.loads(line).items()}


def state_of(training: Training) -> Values:
    """What is declared: the models, the optimizers, ``session.state``, tracked objects."""
    values: Values = {}
    trained = {name for name, _ in training.model.named_parameters(remove_duplicate=False)}
    for name, tensor in [*training.model.named_parameters(), *training.model.named_buffers()]:
        flatten(tensor, f"{'the parameter' if name in trained else 'the buffer'} {name}", values)
    for part, state in training.steppers.capture().items():
        if part in ("optimizer", "scheduler", "scaler"):
            flatten(state, f"the {part}'s ", values)
    flatten(training.user, "session.state", values)
    for name, one in training.tracked.items():
        flatten(one.state_dict(), f"the tracked object {name}: ", values)
    return values


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
