"""What a script has trained after each step, as a checked process records it.

A record is made when the script comes for its next batch: with all that it did after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import torch
from torch import nn

from pilot.core.trainer.run_identity import ALL_EPOCHS, PER_NODE
from pilot.submission import loaded_code
from pilot.train.check import quiet
from pilot.train.check.group import CourseGroup
from pilot.train.check.settings import Run, perturb
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
"""How the names of metrics begin that are the session's own."""
_LENGTH = 8
"""Bytes, before each record."""
_FILE = "-records"


class Record(msgspec.Struct, tag=True):
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
    by_design: list[str]
    last: bool


class RecordedGroup(CourseGroup):
    """A group that writes records to the file of its process in ``run``."""

    def __init__(
        self, run: Run, link: Member, training: Training, exchanges: Exchanges, resized: Callable[[int], None]
    ) -> None:
        super().__init__(link, training, exchanges, resized)
        self._run = run
        self._sums = 0
        self._said: Values | None = None
        self._types: set[torch.dtype] = set()

    def enter(self) -> Membership:
        """At first the parameters are the initial ones, and the first batch comes next."""
        if not self._types:
            parameters = [one.dtype for one in self.training.model.parameters() if _is_rounded(one)]
            self._types = {torch.float64, *parameters}
            if self._run.rounding:
                perturb(self.training.model)
            torch.autograd.graph.saved_tensors_hooks(self._noted, lambda tensor: tensor).__enter__()
            nn.modules.module.register_module_forward_hook(self._computed)
        return super().enter()

    def summed(self) -> bool:
        """A sum of gradients is next."""
        self._sums += 1
        quiet.look_at_random_numbers()
        return super().summed()

    def applied(self, words: Words, share: StepShare, metrics: Metrics) -> None:
        """A step was applied."""
        super().applied(words, share, metrics)
        self._said = {"the loss": words.loss}
        for name, value in metrics().items():
            self._said[f"the {name.replace('_', ' ')}" if name.startswith(_OURS) else f"{REPORTED}{name}"] = value

    def settle(self) -> None:
        """The script comes back from what it did since."""
        said, self._said = self._said, None
        if said is not None:
            self._write(said)
        super().settle()

    def finish(self, metrics: Metrics) -> None:
        """The script's loop is over."""
        self.enter()
        self._write({}, last=True)
        super().finish(metrics)

    def _write(self, said: Values, *, last: bool = False) -> None:
        training = self.training
        record = Record(
            training.position.step,
            training.position.epoch,
            self._sums,
            max(torch.finfo(one).eps for one in self._types),
            of_declared(training) | said | of_variables(training),
            PER_NODE in training.identity,
            ALL_EPOCHS in training.identity,
            quiet.seen(),
            last,
        )
        self._sums = 0
        _append(self._run, record)
        note_loaded(self._run)

    def _computed(self, _module: nn.Module, _given: object, result: object) -> None:
        """A module's output: where activations are checkpointed, autograd keeps nothing that our hook sees."""
        if isinstance(result, torch.Tensor):
            self._noted(result)

    def _noted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Autograd keeps this of a forward pass: its type is one that the script computes in."""
        if _is_rounded(tensor):
            self._types.add(tensor.dtype)
        return tensor


class Loaded(msgspec.Struct, tag=True):
    """What a process has loaded: the user's ``files``, by path, with their SHA-256; and ``modules`` of packages."""

    files: dict[str, str]
    modules: list[str]


def note_loaded(run: Run) -> None:
    """Note what this process has loaded by now."""
    files = {name: version for some in loaded_code.new_versions() for name, version in some.items()}
    _append(run, Loaded(files, imported.new_modules()))


def read(run: Run) -> Iterator[Record | Loaded]:
    """Yield what a process has recorded; not the end of it, if it was killed while it wrote that."""
    path = Path(f"{run.place}{_FILE}")
    rest = memoryview(path.read_bytes() if path.exists() else b"")
    while len(rest) >= (end := _LENGTH + int.from_bytes(rest[:_LENGTH], "little")) > _LENGTH:
        yield msgspec.msgpack.decode(rest[_LENGTH:end], type=Record | Loaded)
        rest = rest[end:]


def _append(run: Run, one: Record | Loaded) -> None:
    block = msgspec.msgpack.encode(one)
    with Path(f"{run.place}{_FILE}").open("ab") as file:
        file.write(len(block).to_bytes(_LENGTH, "little") + block)


def _is_rounded(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
