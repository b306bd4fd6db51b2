"""What a script has trained after each step, as a checked process records it.

A record is made when the script comes for its next batch: with all that it did after the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from pilot.core.run_identity import ALL_EPOCHS, PER_NODE
from pilot.io import installed
from pilot.io.files import publish
from pilot.train.check import quiet
from pilot.train.check.settings import Run, perturb
from pilot.train.check.values import REPORTED, Values, flatten
from pilot.train.check.variables import of_script
from pilot.train.script import imported
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
        note_loaded(self._run.records)

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


class Loaded(msgspec.Struct):
    """What a process has loaded: the user's ``files``, by path, with their SHA-256; and ``modules`` of packages."""

    files: dict[str, str] = {}
    modules: list[str] = []


def note_loaded(path: str) -> None:
    """Add, beside the records at ``path``, what this process has loaded since the last call."""
    before = loaded_by(path)
    files = {name: version for news in installed.loaded_news("") for name, version in news.files.items()}
    now = Loaded(before.files | files, imported.new_modules())
    if now != before:
        publish(Path(f"{path}-loaded"), msgspec.json.encode(now))


def loaded_by(path: str) -> Loaded:
    """Return what a process noted so."""
    noted = Path(f"{path}-loaded")
    return msgspec.json.decode(noted.read_bytes(), type=Loaded) if noted.exists() else Loaded()


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
