"""The sums of the step after a checkpoint are kept beside it, as sketches, and compared with those of the same step
when the trainer resumes from that checkpoint. If they differ, the script is told: it may compute with what no
checkpoint holds, or a node computes wrongly.

The step must have the same samples. If they are divided among another number of ranks, sums differ by design where
forward draws random numbers, or normalises by its batch; then they are not compared. After a notice there is no next
step, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from torch import nn

from pilot.train.data import rng
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.sketch import LENGTH, Sketch, Sketched, differing
from pilot.train.script import refusal
from pilot.train.state.stepper import Stepper
from pilot.train.state.training import Training

_TOLERANCE_DIVIDED = 0.05
"""Of a gradient's norm, if the samples were divided otherwise: 16-bit types round each rank's mean."""


class NextStep(msgspec.Struct, frozen=True):
    """The step after ``step`` others, of the samples [cursor, cursor_end) of its epoch, divided among ``parts`` ranks;
    ``divides``: its sums do not depend on that number; ``sketched``: the sums.
    """

    step: int
    cursor: int
    cursor_end: int
    parts: int
    divides: bool
    sketched: Sketched


_decoder = msgspec.msgpack.Decoder(NextStep)
Keep = Callable[[int, int, bytes], None]
"""Called with a checkpoint's generation and step, and with what is to lie beside it."""


def kept_nowhere(_generation: int, _step: int, _block: bytes) -> None:
    """Without checkpoints nothing is kept."""


class NextSteps:
    """The leader's: what it has to keep, and what it compares after a resume."""

    def __init__(self, training: Training, keep: Keep) -> None:
        self._training = training
        self._keep = keep
        self._saved: tuple[int, int] | None = None
        self._before: NextStep | None = None
        self._now: NextStep | None = None
        self._sketch = Sketch(1.0)
        self._generators: object = None

    def saved(self, generation: int) -> None:
        """The state is being saved as it is now."""
        self._saved = generation, self._training.position.step

    def resumed(self, block: bytes) -> None:
        """The state was loaded from a checkpoint, with this beside it (b"": nothing)."""
        position = self._training.position
        has_changed = any(change.step == position.step for change in self._training.changes)  # what the user accepted
        self._before = _read(block) if block and not has_changed else None

    def begins(self, share: StepShare, rank: int, parts: int) -> None:
        """A step begins on ``rank``, whose samples are divided among ``parts`` ranks."""
        self._now = None
        step, is_possible = self._training.position.step, not (self._training.position.phase or self._training.sharding)
        if not rank and is_possible and (self._is_next(step) or self._before is not None):
            self._now = NextStep(step, share.cursor, share.cursor_end, parts, self._divides(), {})
            self._sketch = Sketch(1.0)

    def forward_begins(self) -> None:
        """The script gets a batch."""
        if self._now is not None:
            self._generators = rng.positions()

    def forward_ends(self) -> None:
        """The batch has its gradients."""
        if self._now is not None and self._now.divides and self._generators != rng.positions():
            self._now = msgspec.structs.replace(self._now, divides=False)

    def came(self, steppers: Sequence[Stepper]) -> None:
        """The gradients of what these step are sums now."""
        if self._now is not None:
            parameters = [parameter for one in steppers for parameter in self._training.trained.of(one)]
            self._sketch.add(parameters, [parameter.grad for parameter in parameters])

    def ends(self) -> str:
        """The step is done. Returns what the user should see, if its sums are not those from before a resume."""
        now, self._now = self._now, None
        if now is None:
            return ""
        before, self._before = self._known(now), None  # there is one first step
        now = msgspec.structs.replace(now, sketched=self._sketch.of(self._training.trained.named))
        if self._saved is not None and self._is_next(now.step):
            self._keep(*self._saved, msgspec.msgpack.encode(now))
        return _difference(before, now) if before is not None else ""

    def _is_next(self, step: int) -> bool:
        return self._saved is not None and self._saved[1] == step

    def _divides(self) -> bool:
        return not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in self._training.model.modules())

    def _known(self, now: NextStep) -> NextStep | None:
        """What was kept of the step before a resume, if it can be compared with the one ``now``."""
        one = self._before
        if one is None or (one.step, one.cursor, one.cursor_end) != (now.step, now.cursor, now.cursor_end):
            return None
        return one if one.parts == now.parts or (one.divides and now.divides) else None


def _read(block: bytes) -> NextStep | None:
    """None: it is damaged. A file system may lose what was written last; only the checkpoint itself is verified."""
    try:
        one = _decoder.decode(block)
    except msgspec.MsgspecError:
        return None
    return one if {len(row) for row in one.sketched.values()} <= {LENGTH} else None


def _difference(before: NextStep, now: NextStep) -> str:
    is_divided_alike = before.parts == now.parts
    tolerance = {} if is_divided_alike else {"tolerance": _TOLERANCE_DIVIDED}
    name = differing(now.sketched, before.sketched, **tolerance)
    if not name:
        return ""
    loss = "" if is_divided_alike else " a loss that is no mean over the samples (pilot check shows that);"
    difference = (
        f"step {now.step + 1} has another gradient of {name} than before the trainer was resumed, from the same samples"
        " and parameters"
    )
    refusal.note(
        f"{difference}. Possible causes:{loss} a value that the script switches in an epoch (if epoch == 3:), counts by"
        " itself, draws without a seed, or has from its node (files, the environment); a script that was changed; a"
        " node that computes wrongly. Derive such a value from session.steps, keep it in session.state, track it, or"
        " seed it"
    )
    return f"{difference}; its log says what to look for"
