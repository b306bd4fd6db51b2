"""Compares the step after a checkpoint with the same step when the trainer resumes from it: sketches of the sums are
saved beside the checkpoint. If the sums differ, the step is not applied (see :mod:`pilot.train.steps.comparison`).

The step must have the same samples, and no file of the script may have changed. If the samples are divided among
another number of ranks, sums may differ by design: they are not compared if forward draws random numbers or normalises
by its batch, and a difference is only remarked. After a notice there is no next step, and nothing is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from torch import nn

from pilot.submission import loaded_code
from pilot.train.data import rng
from pilot.train.data.sampler import Bounds, StepShare
from pilot.train.gradients.sketch import LENGTH, Sketch, Sketched, differing
from pilot.train.state.stepper import Stepper
from pilot.train.state.training import Training


class NextStep(msgspec.Struct):
    """Sketches of the step after ``step`` others, of the samples [cursor, cursor_end) of its epoch, divided among
    ``parts`` ranks by ``bounds`` (:data:`pilot.train.data.sampler.Bounds`). ``divides``: its sums do not depend on
    these; ``code``: the versions of the script's files; ``sketched``: the sums of each of its phases.
    """

    step: int
    cursor: int
    cursor_end: int
    parts: int
    divides: bool
    code: dict[str, str]
    sketched: list[Sketched]
    bounds: tuple[int, ...] = ()

    def divided_as(self, other: NextStep) -> bool:
        """Return whether as many ranks divide the samples by the same bounds."""
        return (self.parts, self.bounds) == (other.parts, other.bounds)

    def difference(self, before: NextStep) -> str:
        """Return a sentence on how the newest sums differ from ``before``; "" if they do not, or may differ."""
        phase = len(self.sketched) - 1
        its, place = ((one.step, one.cursor, one.cursor_end) for one in (self, before))
        is_alike = its == place and (self.divided_as(before) or (self.divides and before.divides))
        is_mended = any(before.code.get(path, version) != version for path, version in self.code.items())
        if not is_alike or is_mended or phase >= len(before.sketched):
            return ""
        name = differing(self.sketched[phase], before.sketched[phase])
        ranks = f" ({before.parts} ranks divided them then, and {self.parts} now)" if self.parts != before.parts else ""
        return name and (
            f"step {self.step + 1} has another gradient of {name} than before the trainer was resumed, from the same"
            f" samples and parameters{ranks}"
        )


_decoder = msgspec.msgpack.Decoder(NextStep)
Keep = Callable[[int, int, bytes], None]
"""Saves an encoded :class:`NextStep` beside the checkpoint of this generation and step."""


def discard(_generation: int, _step: int, _block: bytes) -> None:
    """Save nothing, because there are no checkpoints."""


class NextSteps:
    """The leader's sketches of next steps. ``compares``: whether the group's first step after a resume is next."""

    def __init__(self, training: Training, keep: Keep) -> None:
        self._training = training
        self._keep = keep
        self._saved: tuple[int, int] | None = None
        self._before: NextStep | None = None
        self._now: NextStep | None = None
        self._generators: object = None
        self.compares = False

    def saved(self, generation: int) -> None:
        """Note that the present state is being saved in a checkpoint."""
        self._saved = generation, self._training.position.step

    def resumed(self, block: bytes) -> None:
        """Note that the state was loaded from a checkpoint with this block beside it (b"": none)."""
        position = self._training.position
        has_changed = any(change.step == position.step for change in self._training.changes)  # accepted by the user
        self._before = _read(block) if block and not has_changed else None

    def group_begins(self, *, resumes: bool) -> None:
        """Begin a group; it ``resumes`` from a checkpoint, or continues with a state that one of its ranks has."""
        self.compares = resumes
        if not resumes:
            self._before = None

    def begins(self, share: StepShare, rank: int, parts: int, bounds: Bounds = ()) -> None:
        """Begin a step on ``rank``; ``parts`` ranks divide its samples by ``bounds``."""
        self._now = None
        step, is_possible = self._training.position.step, not (self._training.position.phase or self._training.sharding)
        if not rank and is_possible and (self._is_next(step) or self._before is not None):
            self._now = NextStep(
                step, share.cursor, share.cursor_end, parts, self._divides(), loaded_code.versions(), [], bounds
            )

    def forward_begins(self) -> None:
        """Note the generators' states before a batch."""
        if self._now is not None:
            self._generators = rng.positions()

    def forward_ends(self) -> None:
        """Note whether the batch drew random numbers."""
        if self._now is not None and self._generators != rng.positions():
            self._now.divides = False

    def summed(self, steppers: Sequence[Stepper]) -> str:
        """Sketch the sums of ``steppers``, and return how they differ from those before a resume."""
        if self._now is None:
            return ""
        named = self._training.trained.named
        its = {id(parameter) for one in steppers for parameter in self._training.trained.of(one)}
        sketch = Sketch(1.0)
        stepped = {name: one for name, one in named.items() if id(one) in its}
        sketch.add([*stepped.values()], [one.grad for one in stepped.values()])
        self._now.sketched.append(sketch.of(stepped))
        return self._now.difference(self._before) if self._before is not None else ""

    @property
    def divided_otherwise(self) -> bool:
        """Whether the step's samples were divided otherwise before the resume."""
        return self._now is not None and self._before is not None and not self._now.divided_as(self._before)

    def ends(self) -> None:
        """End the step, and save its sketches if it is the one after a checkpoint."""
        now, self._now, self._before, self.compares = self._now, None, None, False  # there is one first step
        if now is not None and self._saved is not None and self._is_next(now.step):
            self._keep(*self._saved, msgspec.msgpack.encode(now))

    def _is_next(self, step: int) -> bool:
        return self._saved is not None and self._saved[1] == step

    def _divides(self) -> bool:
        return not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in self._training.model.modules())


def _read(block: bytes) -> NextStep | None:
    """Return the sketches in ``block``; None if it is damaged, because only the checkpoint itself is verified."""
    try:
        one = _decoder.decode(block)
    except msgspec.MsgspecError:
        return None
    return one if {len(row) for sketched in one.sketched for row in sketched.values()} <= {LENGTH} else None
