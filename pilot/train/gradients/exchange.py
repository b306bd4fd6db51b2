"""Moves gradients to the rank process: into shared buckets while backward is still running, and back as sums."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any

import numpy as np
import torch
from torch import nn

from pilot.checkpoint import shards
from pilot.comm.arena import Arena, ArenaLayout, lay_out, shares_of
from pilot.comm.messages import BucketPart
from pilot.comm.narrow import KINDS
from pilot.core.errors import UserError
from pilot.train.gradients.sketch import Sketch
from pilot.train.gradients.staging import Staging, check_devices
from pilot.train.gradients.step_words import FIELDS, Words
from pilot.train.node.node_group import NodeGroup
from pilot.train.state.placeholder import Placeholder, Stale, Taken

BUCKET_BYTES = 4 * 1024 * 1024
_NARROW = {torch.bfloat16, torch.float16}
"""Summed in float32, because MPI has no type for them, and their sums would lose digits."""
_REAL = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "float32",
    torch.complex128: "float64",
}


class Exchange:
    """The gradients of one model in one arena.

    Autograd creates each gradient in its own memory; when those of a bucket are complete, each is multiplied by its
    weight and written into the bucket. This single pass replaces the scaling that an average needs anyway, and avoids
    the zeroing and adding that gradients inside the bucket would need. After the sum the parameter's ``grad`` *is* the
    bucket's memory.

    From the moment a gradient is taken until its sum is available, and from the next batch on until the script zeroes
    it, ``grad`` is a :class:`~pilot.train.state.placeholder.Placeholder`. This also applies to a script that runs
    alone: its gradients are taken and given back unchanged.

    A call from autograd into Python for each parameter would cost as much as exchanging a small tensor, so only the
    last parameter of each bucket is watched. ``benchmarks.guards`` measures what remains per parameter and step: keep
    the Python part of these loops small.

    Parameters
    ----------
    parameters : the trained ones, in the model's order
    wire_dtype : the type in which float32 is sent, see :mod:`pilot.comm.narrow`; None: unchanged
    bucket_bytes : see :func:`~pilot.comm.arena.lay_out`
    group : in which the node's processes sum among themselves; None: the rank process adds them up
    """

    _sharing = 0
    """Among how many processes of the node gradients are divided, if not in ``group``; 0: they are not."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        wire_dtype: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        group: NodeGroup | None = None,
    ) -> None:
        if wire_dtype not in (None, *KINDS):
            raise UserError(f"wire_dtype must be {' or '.join(KINDS)} or None, got {wire_dtype!r}")
        self._parameters = list(reversed(parameters))  # backward starts with the last ones
        check_devices(self._parameters)
        kinds = [_wire_kind(p) for p in self._parameters]
        whole = lay_out(kinds, bucket_bytes, FIELDS + len(kinds), wire_dtype or "")
        sharing = group.size if group is not None else self._sharing
        self.layout: ArenaLayout = shares_of(whole, sharing) if sharing else whole
        self.arena = Arena.of_size(self.layout.size)
        weakref.finalize(self, self.arena.close_fd).atexit = False
        control = self.layout.control
        vector = np.frombuffer(self.arena.memory, np.float64, control.count, control.offset)
        self._fields, self._used = vector[:FIELDS], vector[FIELDS:]  # one per parameter: has it a gradient?
        self._buckets = [_Bucket() for _ in self.layout.parts[:-1]]
        for index, (slot, parameter) in enumerate(zip(self.layout.slots, self._parameters, strict=True)):
            self._buckets[slot.bucket].append(index, parameter)
        shares = [self._numbers(part) for part in self.layout.parts[:-1]]
        self._staging = Staging(list(map(shards.local_of, self._parameters)), whole, shares, self.arena, group)
        self._in_place: list[int] = []
        self._stale = [Stale.of(p, number, self._in_place) for number, p in enumerate(self._parameters)]
        self._voided = False
        self.idle()
        for number, bucket in enumerate(self._buckets):
            bucket.watch(-1, weakly(self._finished, number))

    def _numbers(self, part: BucketPart) -> torch.Tensor:
        dtype = getattr(torch, part.dtype)
        return torch.frombuffer(self.arena.memory, dtype=dtype, count=part.count, offset=part.offset)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trained ones, in the order of the buckets."""
        return self._parameters

    def close(self) -> None:
        """Another exchange replaces it: stop watching parameters."""
        for bucket in self._buckets:
            bucket.unwatch()
        self.arena.close_fd()

    def idle(self) -> None:
        """Between steps: gradients stay where autograd puts them."""
        self.open = False
        self._weight = 0.0
        self._last = False
        self._alone = self._held = False
        self._sketch: Sketch | None = None
        self._ring: Callable[[], None] = _nobody
        self._staging.forget()
        for bucket in self._buckets:
            bucket.kept = bucket.early = []

    def begin(
        self, ring: Callable[[], None], *, alone: bool = False, held: bool = False, sketch: Sketch | None = None
    ) -> None:
        """A step begins. ``ring`` is called for each full bucket, in order; for the last one once the control vector is
        written, too, so that the summing process is woken only once for both. ``alone``: one micro-batch on one rank,
        so there is nothing to add up. ``held``: the gradients' weight is known only after backward, and given by
        :meth:`release`; until then they stay where they are. ``sketch``: what adds up sketches of this step's
        gradients, if they are to be compared.
        """
        self.open, self._ring, self._alone, self._held, self._sketch = True, ring, alone, held, sketch
        self._holds = bytearray(len(self._parameters))
        self._in_place.clear()
        self._collected = [True] * len(self._buckets)
        self._next = 0
        self._first = True

    def begin_batch(self, weight: float, *, last: bool) -> None:
        """A micro-batch begins, whose gradients have this ``weight`` (0: they do not count); buckets are sent with the
        last one."""
        first, self._first = self._first, False
        if self._voided:  # zeros that are ours, and which the script need not zero
            self.drop_gradients()
        if not first and any(parameter.grad is not None for parameter in self._parameters):
            self._buckets[0].taken[0].refuse()
        self._weight, self._last = weight, last
        self._collected = [False] * len(self._buckets)
        if first:
            for parameter, stale in zip(self._parameters, self._stale, strict=True):
                if parameter.grad is not None:  # a real one was computed by this micro-batch
                    parameter.grad = stale
        if first and not self._alone:
            self._staging.begin()

    def batch_ends(self) -> None:
        """The script has stepped after a micro-batch that is not its step's last: it may zero what is left now."""
        self._collect_rest()
        self.drop_gradients()

    def backward_ended(self) -> None:
        """The script's ``backward`` has returned: guard the gradients of buckets that it did not fill, too."""
        if not self.open:
            return
        for bucket, collected in zip(self._buckets, self._collected, strict=True):
            if not collected:
                bucket.take_early()

    def _finished(self, number: int, _parameter: torch.Tensor) -> None:
        """The gradient that is usually the last of its bucket is complete: collect the bucket, or watch a later one."""
        if not self.open:
            return
        bucket = self._buckets[number]
        if self._collected[number]:
            bucket.taken[0].refuse()
        gradients = bucket.gradients()
        if all(map(is_not, gradients, repeat(None))):
            check_gradients(gradients, in_backward=True)
            self._collect(number, gradients)
        else:
            missing = next(place for place, gradient in enumerate(gradients) if gradient is None)
            bucket.watch(missing, weakly(self._finished, number))

    def _collect(self, number: int, gradients: Sequence[torch.Tensor | None]) -> None:
        """Take the gradients of a bucket; with the last micro-batch, send it."""
        self._collected[number] = True
        bucket = self._buckets[number]
        if self._sketch is not None and not self._held:
            self._sketch.add(bucket.parameters, gradients)
        if self._held or self._alone:
            bucket.kept = gradients if self._held or self._weight else []
        elif self._weight:
            self._add(number, gradients)
        bucket.early = []
        for parameter, taken in zip(bucket.parameters, bucket.taken, strict=True):
            parameter.grad = taken
        if self._last and not self._held:
            self._send(number)
            self._tell_collected()

    def _send(self, number: int) -> None:
        if not self._alone:
            self._staging.send(number, self._holds[self._buckets[number].range])

    def _tell_collected(self) -> None:
        """Ring for all parts before the first that is not full."""
        while self._next < len(self._buckets) and self._collected[self._next]:
            self._then_ring(self._next)
            self._next += 1

    def _then_ring(self, number: int) -> None:
        ring = self._ring if number < len(self._buckets) - 1 else _nobody
        if self._alone:
            ring()
        else:
            self._staging.then(number, ring)

    def _add(self, number: int, gradients: Sequence[torch.Tensor | None]) -> None:
        bucket = self._buckets[number]
        made = [gradient for gradient in gradients if gradient is not None]
        if len(made) == len(bucket.indices) and 1 not in self._holds[bucket.range]:
            self._staging.start(number, made, self._weight)
            self._holds[bucket.range] = b"\1" * len(made)
            return
        for index, gradient in zip(bucket.indices, gradients, strict=False):
            if gradient is not None:
                self._staging.add(index, gradient, self._weight, first=not self._holds[index])
                self._holds[index] = 1

    def release(self, weight: float) -> None:
        """In a held step: the gradients computed since the last call get this ``weight``."""
        self._collect_rest()
        self._weight = weight
        for number, bucket in enumerate(self._buckets):
            if self._sketch is not None:
                self._sketch.add(bucket.parameters, bucket.kept)
            if not self._alone:
                self._add(number, bucket.kept if weight else [])
                bucket.kept = []
            if self._last:
                self._send(number)
        if self._last:
            self._tell_collected()

    def _collect_rest(self) -> None:
        for number, (bucket, collected) in enumerate(zip(self._buckets, self._collected, strict=True)):
            gradients = bucket.gradients()
            if not collected:
                check_gradients(gradients)
                self._collect(number, gradients)
            elif not all(map(is_, gradients, bucket.taken)):
                bucket.taken[0].refuse()  # what the script zeroed or set there would not count

    def flush(self) -> None:
        """Backward is over: what it did not reach is zero. Returns when all buckets have been sent."""
        self._collect_rest()
        self._staging.flush()

    def finish(self, words: Words) -> None:
        """All buckets have been sent, or are full; send the control vector."""
        words.write(self._fields)
        self._used[:] = np.frombuffer(self._holds, np.uint8)
        self._ring()

    def take(self) -> Words:
        """The sums are available: give each parameter its gradient (none if no rank had one). If the script gave
        weights, divide by their sum.
        """
        words = Words.read(self._fields)
        if self._alone:
            for bucket in self._buckets:
                bucket.give_back()
        else:
            self._give_back(np.flatnonzero(self._used).tolist())
            if words.weight:
                torch._foreach_div_([p.grad for p in self._parameters if p.grad is not None], words.weight)
        self._check_zeroed()
        self.idle()
        return words

    def _check_zeroed(self) -> None:
        """:class:`UserError` if torch would step a parameter with a gradient that the script has zeroed in place, and
        that no backward has reached. (If none was reached, the batch does not count.)
        """
        missing = [n for n in self._in_place if self._parameters[n].grad is None]
        if missing and any(p.grad is not None for p in self._parameters):
            raise UserError(
                "zero_grad(set_to_none=False) leaves gradients of zero, and this batch does not use a parameter of"
                f" shape {list(self._parameters[missing[0]].shape)}: torch would still step it, with its momentum"
                " and weight decay, but on a node that joins it has none; call zero_grad() without set_to_none=False"
            )

    def _give_back(self, used: list[int]) -> None:
        if len(used) < len(self._parameters):
            self.drop_gradients()
        for index, gradient in zip(used, self._staging.back(used), strict=True):
            parameter = self._parameters[index]
            parameter.grad = self._gradient(parameter, gradient)

    def _gradient(self, parameter: nn.Parameter, summed: torch.Tensor) -> torch.Tensor:
        del parameter
        return summed

    def drop(self) -> None:
        """The step is void."""
        self.void_gradients()
        self.idle()

    def void_gradients(self) -> None:
        """Set gradients to zero, for a script that uses them after a step, which must not fail if a node dies."""
        for parameter in self._parameters:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        self._voided = True

    def drop_gradients(self) -> None:
        """Set all gradients to None."""
        self._voided = False
        for parameter in self._parameters:
            parameter.grad = None


class _Bucket:
    """The parameters of a bucket, with their numbers in the exchange, and their placeholders.

    ``kept``: the gradients themselves, if there is nothing to add up. ``early``: those that were taken when a backward
    ended that had not reached all parameters. The hook is on the parameter whose gradient was the last.
    """

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.parameters: list[nn.Parameter] = []
        self.taken: list[Taken] = []
        self.kept: Sequence[torch.Tensor | None] = []
        self.early: Sequence[torch.Tensor | None] = []
        self._hook: Any = None

    def append(self, index: int, parameter: nn.Parameter) -> None:
        """Add ``parameter`` with number ``index``."""
        self.indices.append(index)
        self.parameters.append(parameter)
        self.taken.append(Taken(parameter))

    @property
    def range(self) -> slice:
        """The range of the numbers."""
        return slice(self.indices[0], self.indices[-1] + 1)

    def gradients(self) -> list[torch.Tensor | None]:
        """The parameters' current gradients."""
        gradients = list(map(_grad_of, self.parameters))
        return list(map(_taken_early, gradients, self.early, self.taken)) if self.early else gradients

    def take_early(self) -> None:
        """Take the gradients that there are; a later backward may compute the others."""
        self.early = self.gradients()
        for parameter, gradient, taken in zip(self.parameters, self.early, self.taken, strict=True):
            if gradient is not None and not isinstance(gradient, Placeholder):
                parameter.grad = taken

    def give_back(self) -> None:
        """Give back the kept gradients."""
        for parameter, gradient in zip(self.parameters, self.kept or repeat(None), strict=False):
            parameter.grad = gradient

    def watch(self, place: int, look: Callable[[torch.Tensor], None]) -> None:
        """Call ``look`` whenever the gradient of the parameter at ``place`` is complete, and for no other. (A frozen
        one gets no gradient; the session refuses that at the end of the step.)
        """
        if not self.parameters[place].requires_grad:
            return
        self.unwatch()
        self._hook = self.parameters[place].register_post_accumulate_grad_hook(look)  # type: ignore[no-untyped-call]  # torch has no types here

    def unwatch(self) -> None:
        """Stop watching."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _taken_early(gradient: torch.Tensor | None, early: torch.Tensor | None, taken: Taken) -> torch.Tensor | None:
    if early is None or isinstance(early, Placeholder):
        return gradient
    if gradient is not taken:
        taken.refuse()  # the script zeroed it or set another one
    return early


def weakly(method: Callable[[int, torch.Tensor], None], number: int) -> Callable[[torch.Tensor], None]:
    """Call ``method`` with ``number``, for a hook that does not own its exchange: Python cannot see what a tensor's
    hooks, or a ``grad``, refer to, and could not collect the cycle.
    """
    reference = weakref.WeakMethod(method)

    def call(tensor: torch.Tensor) -> None:
        if (alive := reference()) is not None:
            alive(number, tensor)

    return call


_grad_of, _layout_of, _requires_grad = attrgetter("grad"), attrgetter("layout"), attrgetter("requires_grad")


def check_gradients(gradients: Sequence[torch.Tensor | None], *, in_backward: bool = False) -> None:
    """:class:`UserError` if they cannot be summed; ``in_backward``: backward is about to end, and computed all of
    them."""
    made = [gradient for gradient in gradients if gradient is not None]
    for gradient in made if not {torch.Tensor}.issuperset(map(type, made)) else ():
        if isinstance(gradient, Placeholder):
            gradient.refuse()
    if torch.is_grad_enabled() if in_backward else any(map(_requires_grad, made)):
        raise UserError(
            "backward(create_graph=True) leaves gradients that have gradients: compute those of a penalty with"
            " torch.autograd.grad(..., create_graph=True), and call loss.backward() without it"
        )
    if not {torch.strided}.issuperset(map(_layout_of, made)):
        raise UserError("a gradient is sparse, and only dense ones can be summed; remove sparse=True where it is made")


def _wire_kind(parameter: nn.Parameter) -> tuple[int, str]:
    """How many numbers of which type are summed; a complex number counts as two."""
    count = shards.padded_numel(parameter)
    if parameter.dtype in _NARROW:
        return count, "float32"
    if parameter.dtype in _REAL:
        return count * (1 + parameter.is_complex()), _REAL[parameter.dtype]
    raise UserError(f"a parameter is of {parameter.dtype}, whose gradients cannot be summed; use float32 or float64")


def _nobody() -> None:
    return None
