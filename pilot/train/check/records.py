"""Records of the values that a script has trained after each step, written by the processes of ``pilot check``.

A record is made when the script asks for its next batch, so it includes what the script did after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch
from torch import nn

from pilot.protocol.run_identity import ALL_EPOCHS, PER_NODE
from pilot.submission import loaded_code
from pilot.train.check import quiet
from pilot.train.check.group import ScenarioGroup
from pilot.train.check.settings import CheckedRun, perturb
from pilot.train.check.values import REPORTED, Values, of_declared, of_variables
from pilot.train.check.world import Member
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.exchanges import Exchanges
from pilot.train.gradients.step_words import Words
from pilot.train.node.membership import Membership
from pilot.train.ranks.reporter import Metrics
from pilot.train.script import imported
from pilot.train.state.training import Training

_OURS = ("learning_rate", "loss_scale")
"""Prefixes of the session's own metrics."""
_LENGTH = 8
"""Bytes of the length that precedes each record."""
_FILE = "-records"


class Record(msgspec.Struct, tag=True):
    """The values after ``step`` steps, in ``epoch``. ``sums``: the number of sums in the step; ``digits``: the relative
    rounding error of the coarsest type used; ``per_node``: the batch size is per node; ``by_epoch``: the loop counts
    epochs; ``by_design``: operations that differ on several nodes by design; ``last``: the loop has ended.
    """

    step: int
    epoch: int
    sums: int
    digits: float
    values: Values
    per_node: bool
    by_epoch: bool
    by_design: list[str]
    last: bool


class RecordedGroup(ScenarioGroup):
    """A group that writes a record after each step, to its process's file of ``run``."""

    def __init__(
        self, run: CheckedRun, link: Member, training: Training, exchanges: Exchanges, resized: Callable[[int], None]
    ) -> None:
        super().__init__(link, training, exchanges, resized)
        self._run = run
        self._sums = 0
        self._measured: Values | None = None
        self._types: set[torch.dtype] = set()

    def enter(self) -> Membership:
        """Enter a group; before the first batch, perturb the parameters if this run is to, and watch types."""
        if not self._types:
            parameters = [one.dtype for one in self.training.model.parameters() if _is_rounded(one)]
            self._types = {torch.float64, *parameters}
            if self._run.rounding:
                perturb(self.training.model)
            torch.autograd.graph.saved_tensors_hooks(self._note_type, lambda tensor: tensor).__enter__()
            nn.modules.module.register_module_forward_hook(self._note_output)
        return super().enter()

    def summed(self) -> bool:
        """Count a sum of gradients, and do it."""
        self._sums += 1
        quiet.note_random_numbers()
        return super().summed()

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """Note the step's loss and metrics for its record."""
        super().applied(words, share, metrics)
        self._measured = {"the loss": words.loss}
        for name, value in metrics().items():
            self._measured[f"the {name.replace('_', ' ')}" if name.startswith(_OURS) else f"{REPORTED}{name}"] = value

    def settle(self) -> None:
        """Write the record of the step that was applied since the last call."""
        measured, self._measured = self._measured, None
        if measured is not None:
            self._write(measured)
        super().settle()

    def finish(self, metrics: Metrics) -> None:
        """Write the record after the loop, and finish."""
        self.enter()
        self._write({}, last=True)
        super().finish(metrics)

    def _write(self, measured: Values, *, last: bool = False) -> None:
        training = self.training
        record = Record(
            training.position.step,
            training.position.epoch,
            self._sums,
            max(torch.finfo(one).eps for one in self._types),
            of_declared(training) | measured | of_variables(training),
            PER_NODE in training.identity,
            ALL_EPOCHS in training.identity,
            quiet.used(),
            last,
        )
        self._sums = 0
        _append(self._run, record)
        note_loaded(self._run)

    def _note_output(self, _module: nn.Module, _given: object, result: object) -> None:
        """Note the type of a module's output: with checkpointed activations, autograd saves no tensors."""
        if isinstance(result, torch.Tensor):
            self._note_type(result)

    def _note_type(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note the type of a tensor that autograd saves: the script computes in it."""
        if _is_rounded(tensor):
            self._types.add(tensor.dtype)
        return tensor


class LoadedFiles(msgspec.Struct, tag=True):
    """The code that a process has loaded: SHA-256 of the user's ``files`` by path, and ``modules`` of packages."""

    files: dict[str, str]
    modules: list[str]


def note_loaded(run: CheckedRun) -> None:
    """Record the code that this process has loaded since the last call."""
    files = {name: version for part in loaded_code.new_versions() for name, version in part.items()}
    _append(run, LoadedFiles(files, imported.new_modules()))


def read(run: CheckedRun) -> Iterator[Record | LoadedFiles]:
    """Yield the records of a process; an incomplete last one (the process was killed) is left out."""
    path = Path(f"{run.place}{_FILE}")
    rest = memoryview(path.read_bytes() if path.exists() else b"")
    while len(rest) >= (end := _LENGTH + int.from_bytes(rest[:_LENGTH], "little")) > _LENGTH:
        yield msgspec.msgpack.decode(rest[_LENGTH:end], type=Record | LoadedFiles)
        rest = rest[end:]


def _append(run: CheckedRun, one: Record | LoadedFiles) -> None:
    block = msgspec.msgpack.encode(one)
    with Path(f"{run.place}{_FILE}").open("ab") as file:
        file.write(len(block).to_bytes(_LENGTH, "little") + block)


def _is_rounded(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
