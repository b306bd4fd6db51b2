"""The sums of the step after a checkpoint are kept beside it, as sketches, and compared with those of the same step
when the trainer resumes from that checkpoint. If they differ, the step is not done (see
:mod:`pilot.train.steps.comparison`).

The step must have the same samples, and no file of the script's code may have changed. If the samples are divided among
another number of ranks, sums may differ by design: they are not compared where forward draws random numbers, or
normalises by its batch, and a difference is only remarked.
After a notice there is no next step, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from torch import nn

from pilot.submission import loaded_code
from pilot.train.data import rng
from pilot.train.data.sampler import StepShare
from pilot.train.gradients.sketch import LENGTH, Sketch, Sketched, differing
from pilot.train.state.stepper import Stepper
from pilot.train.state.training import Training


class NextStep(msgspec.Struct):
    """The step after ``step`` others, of the samples [cursor, cursor_end) of its epoch, divided among ``parts`` ranks;
    ``divides``: its sums do not depend on that number; ``code``: the versions of the script's files; ``sketched``: the
    sums, of each of its phases.
    """

    step: int
    cursor: int
    cursor_end: int
    parts: int
    divides: bool
    code: dict[str, str]
    sketched: list[Sketched]

    def difference(self, before: NextStep) -> str:
        """In words, how its newest sums differ from those of the same phase ``before``; "": they do not, or need not be
        the same.
        """
        phase = len(self.sketched) - 1
        its, place = ((one.step, one.cursor, one.cursor_end) for one in (self, before))
        is_alike = its == place and (self.parts == before.parts or (self.divides and before.divides))
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
"""Called with a checkpoint's generation and step, and with what is to lie beside it."""


def discard(_generation: int, _step: int, _block: bytes) -> None:
    """Without checkpoints nothing is kept."""


class NextSteps:
    """What the leader has to keep, and compares after a resume. ``compares``: the group has resumed, and has not done
    a step yet; the same on all its ranks.
    """

    def __init__(self, training: Training, keep: Keep) -> None:
        self._training = training
        self._keep = keep
        self._saved: tuple[int, int] | None = None
        self._before: NextStep | None = None
        self._now: NextStep | None = None
        self._generators: object = None
        self.compares = False

    def saved(self, generation: int) -> None:
        """The state is being saved as it is now."""
        self._saved = generation, self._training.position.step

    def resumed(self, block: bytes) -> None:
        """The state was loaded from a checkpoint, with this beside it (b"": nothing)."""
        position = self._training.position
        has_changed = any(change.step == position.step for change in self._training.changes)  # what the user accepted
        self._before = _read(block) if block and not has_changed else None

    def group_begins(self, *, resumes: bool) -> None:
        """A group begins, from a checkpoint or from a state that a rank of it has."""
        self.compares = resumes
        if not resumes:
            self._before = None

    def begins(self, share: StepShare, rank: int, parts: int) -> None:
        """A step begins on ``rank``, whose samples are divided among ``parts`` ranks."""
        self._now = None
        step, is_possible = self._training.position.step, not (self._training.position.phase or self._training.sharding)
        if not rank and is_possible and (self._is_next(step) or self._before is not None):
            self._now = NextStep(
                step, share.cursor, share.cursor_end, parts, self._divides(), loaded_code.versions(), []
            )

    def forward_begins(self) -> None:
        """The script gets a batch."""
        if self._now is not None:
            self._generators = rng.positions()

    def forward_ends(self) -> None:
        """The batch has its gradients."""
        if self._now is not None and self._generators != rng.positions():
            self._now.divides = False

    def came(self, steppers: Sequence[Stepper]) -> str:
        """The gradients of what these step are sums now. Returns how they differ from those before a resume."""
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
        """Whether the samples of the step were divided among another number of ranks before a resume."""
        return self._now is not None and self._before is not None and self._now.parts != self._before.parts

    def ends(self) -> None:
        """The step is done."""
        now, self._now, self._before, self.compares = self._now, None, None, False  # there is one first step
        if now is not None and self._saved is not None and self._is_next(now.step):
            self._keep(*self._saved, msgspec.msgpack.encode(now))

    def _is_next(self, step: int) -> bool:
        return self._saved is not None and self._saved[1] == step

    def _divides(self) -> bool:
        return not any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in self._training.model.modules())


def _read(block: bytes) -> NextStep | None:
    """None: it is damaged. A file system may lose what was written last; only the checkpoint itself is verified."""
    try:
        one = _decoder.decode(block)
    except msgspec.MsgspecError:
        return None
    return one if {len(row) for sketched in one.sketched for row in sketched.values()} <= {LENGTH} else None
