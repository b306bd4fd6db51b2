"""What a trainer's leader reports about what it trains on, as words by name, and what changed at a resume.

The training process decides all of it (:mod:`pilot.train.state.identity`); here is what the ledger's proof needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilot.core.errors import UserError

SEED = "the seed"
LENGTH = "the length of the dataset"
STREAM = "a stream"
SAMPLES = "the checksum of the dataset's indices, labels and texts"
PER_NODE = "batch_size"
WHOLE = "global_batch_size"
DROP_LAST = "drop_last"
ORDER = "the order of the samples"
RULES = "the rules"
SYNC = "how nodes synchronise"
"""Only of runs whose nodes train in rounds (:mod:`pilot.submission.seldom`)."""
OPTIONS = "the options of the optimizer"
ALL_EPOCHS = "the number of epochs, done ones included,"
ALL_ITERATIONS = "the number of iterations, done ones included,"

MISSING = "missing"
"""The value, in a change, of a name that an identity lacks."""

GRADIENTS = "the gradient of the same samples"
"""Not part of an identity, but compared when a node joins and after a resume."""

ORDERED_BY = (SEED, LENGTH, SAMPLES, ORDER)
"""What determines the order of the samples in an epoch."""

ACCEPTABLE = {
    "seed": (SEED,),
    "dataset": (LENGTH, SAMPLES),
    "batches": (PER_NODE, WHOLE, DROP_LAST, ORDER),
    "rules": (RULES, SYNC),
    "options": (OPTIONS,),
    "fewer": (ALL_EPOCHS, ALL_ITERATIONS),
    "gradients": (GRADIENTS,),
}
"""What may change at a resume, if the user accepts it. The model is not included, because it could not be loaded."""

ACCEPT = "PILOT_ACCEPT_CHANGES"
"""The variable that ``--accept-changes`` sets."""


def acceptable(kinds: str) -> frozenset[str]:
    """The names that ``kinds``, separated by commas, stand for; :class:`UserError` if one is unknown."""
    given = [kind.strip() for kind in kinds.split(",") if kind.strip()]
    for kind in given:
        if kind not in ACCEPTABLE:
            raise UserError(f"changes of {kind!r} cannot be accepted, only of {', '.join(ACCEPTABLE)}")
    return frozenset(name for kind in given for name in ACCEPTABLE[kind])


@dataclass(frozen=True, slots=True)
class AcceptedChange:
    """A change of ``what`` at a resume after ``step`` steps, which the user accepted."""

    step: int
    what: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"{self.what} was changed from {self.before} to {self.now} after step {self.step}"


@dataclass(frozen=True, slots=True)
class Samples:
    """How a run goes through its samples, according to its identity."""

    length: int | None  #: samples in an epoch; None: a stream
    multiple: int  #: divides the number of samples of each full step
    drop_last: bool  #: whether an epoch's last step is dropped if it is not full

    @classmethod
    def of(cls, words: Mapping[str, str]) -> Samples:
        """From a leader's words; values that should be numbers and are not are ignored."""
        length = words.get(LENGTH, "")
        multiple = max(1, _number(words.get(WHOLE, words.get(PER_NODE, ""))))
        return cls(None if length == STREAM else _number(length), multiple, words.get(DROP_LAST) == "True")

    def size(self, cursor: int, batch: int) -> int:
        """How many samples an epoch should have had that ended at sample ``cursor`` with steps of ``batch``."""
        if self.length is None or (self.drop_last and 0 <= self.length - cursor < batch):
            return cursor
        return self.length


def ends_later(name: str, before: str, now: str) -> bool:
    """Whether a training is continued to a later end; never so if ``name`` is none of that."""
    return name in (ALL_EPOCHS, ALL_ITERATIONS) and _number(before) <= _number(now)


def before(words: Mapping[str, str], changes: tuple[AcceptedChange, ...], step: int) -> dict[str, str]:
    """``words`` as they were at step ``step``."""
    then = dict(words)
    for change in reversed(changes):
        if change.step > step:
            then[change.what] = change.before
    return then


def in_rounds(words: Mapping[str, str], changes: tuple[AcceptedChange, ...], step: int) -> bool:
    """Whether nodes trained in rounds at step ``step``."""
    return before(words, changes, step).get(SYNC, MISSING) != MISSING


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else 0
