"""Moves gradients to the rank process: into shared buckets while backward is still running, and back as sums."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from operator import is_, is_not

import numpy as np
import torch
from torch import nn

from pilot.checkpoint import shards
from pilot.comm.arena import Arena, ArenaLayout, lay_out, shares_of
from pilot.comm.messages import BucketPart
from pilot.core.errors import UserError
from pilot.train.between.between import Between
from pilot.train.gradients.bucket import Bucket, check_gradients
from pilot.train.gradients.sketch import Sketch
from pilot.train.gradients.staging import Staging, check_devices
from pilot.train.gradients.step_words import FIELDS, Words
from pilot.train.node.node_group import NodeGroup
from pilot.train.state.placeholder import Stale
from pilot.train.state.shares import MOST_TIMED

BUCKET_BYTES = 4 * 1024 * 1024
_NARROW = {torch.bfloat16, torch.float16}
"""Summed in float32, because MPI has no type for them, and their sums would lose digits."""
_REAL = {torch.float32: "float32", torch.float64: "float64", torch.complex64: "float32", torch.complex128: "float64"}


class Exchange:
    """The gradients of one model in one arena.

    Autograd creates each gradient in its own memory; when those of a bucket are complete, each is multiplied by its
    weight and written into the bucket. This single pass replaces the scaling that an average needs anyway, and avoids
    the zeroing and adding that gradients inside the bucket would need. After the sum the parameter's ``grad`` *is* the
    bucket's memory.

    While a gradient is being summed, and from the next batch on until the script zeroes it, ``grad`` is a
    :class:`~pilot.train.state.placeholder.Placeholder`. This also applies to a script that runs alone: its gradients
    are taken and given back unchanged.

    A call from autograd into Python for each parameter would cost as much as exchanging a small tensor, so only the
    last parameter of each bucket is watched. ``benchmarks.guards`` measures what remains per parameter and step: keep
    the Python part of these loops small.

    ``control``: the control vector, shape (control,), float64: the words, whether each parameter has a gradient, and
    the ranks' times.

    Parameters
    ----------
    parameters : the trained parameters, in the model's order
    wire_dtype : the type in which float32 is sent, see :mod:`pilot.comm.narrow`; None: unchanged
    bucket_bytes : see :func:`~pilot.comm.arena.lay_out`
    group : sums the gradients of the node's processes; None: the rank process adds them up
    between : sums the buckets over the nodes; None: the rank process does, and here they are in the arena
    """

    _sharing = 0
    """The number of processes that divide the node's gradients without ``group``; 0: they do not."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        wire_dtype: str | None = None,
        bucket_bytes: int = BUCKET_BYTES,
        group: NodeGroup | None = None,
        between: Between | None = None,
    ) -> None:
        self._between = between
        self.parameters = list(reversed(parameters))  # backward starts with the last ones
        check_devices(self.parameters)
        kinds = [_wire_kind(p) for p in self.parameters]
        complete = lay_out(kinds, bucket_bytes, FIELDS + len(kinds) + MOST_TIMED, wire_dtype or "")
        sharing = group.size if group is not None else self._sharing
        self.layout: ArenaLayout = shares_of(complete, sharing) if sharing else complete
        self.arena = Arena.of_size(self.layout.size)
        weakref.finalize(self, self.arena.close_fd).atexit = False
        control = self.layout.control
        vector = np.frombuffer(self.arena.memory, np.float64, control.count, control.offset)
        self.control = torch.from_numpy(vector)
        self._fields, rest = vector[:FIELDS], vector[FIELDS:]
        self._used, self._places = rest[: len(kinds)], rest[len(kinds) :]  # by parameter: has it a gradient? By rank
        self._times = self._places[:0]
        self._buckets = [Bucket() for _ in self.layout.parts[:-1]]
        for index, (slot, parameter) in enumerate(zip(self.layout.slots, self.parameters, strict=True)):
            self._buckets[slot.bucket].append(index, parameter)
        shares = [self._numbers(part) for part in self.layout.parts[:-1]]
        tensors, arena = list(map(shards.local_of, self.parameters)), None if between is not None else self.arena
        self._staging = Staging(tensors, complete, shares, arena, group)
        self._in_place: list[int] = []
        self._stale = [Stale.of(p, number, self._in_place) for number, p in enumerate(self.parameters)]
        self._voided = False
        self.idle()
        for number, bucket in enumerate(self._buckets):
            bucket.watch(-1, weakly(self._finished, number))

    def _numbers(self, part: BucketPart) -> torch.Tensor:
        dtype = getattr(torch, part.dtype)
        return torch.frombuffer(self.arena.memory, dtype=dtype, count=part.count, offset=part.offset)

    def parts(self, ranks: int) -> list[BucketPart]:
        """Return the parts that the rank process sums in a group of ``ranks``: its control vector has times, if these
        have a place.
        """
        *buckets, control = self.layout.parts
        unused = len(self._places) - (ranks if ranks <= MOST_TIMED else 0)
        if self._between is not None:
            buckets = []
        return [*buckets, BucketPart(control.offset, control.count - unused, control.dtype)]

    def close(self) -> None:
        """Stop watching parameters, because another exchange replaces this one."""
        for bucket in self._buckets:
            bucket.unwatch()
        self.arena.close_fd()

    def idle(self) -> None:
        """Leave gradients where autograd puts them, until the next step begins."""
        self.open = False
        self._weight = 0.0
        self._last = False
        self._alone = self._held = False
        self._sketch: Sketch | None = None
        self._ring: Callable[[], None] = lambda: None
        self._staging.forget()
        for bucket in self._buckets:
            bucket.gradients_held = bucket.early = []

    def begin(
        self, ring: Callable[[], None], *, alone: bool = False, held: bool = False, sketch: Sketch | None = None
    ) -> None:
        """Begin a step. ``ring`` is called for each full bucket, in order; for the last one not before the control
        vector is written, so that the summing process is woken once for both. ``alone``: the step has one micro-batch
        on one rank, so there is nothing to add up. ``held``: gradients wait until :meth:`release` gives their weight.
        ``sketch``: adds up sketches of the step's gradients, if they are to be compared.
        """
        self.open, self._ring, self._alone, self._held, self._sketch = True, ring, alone, held, sketch
        self._holds = bytearray(len(self.parameters))
        self._in_place.clear()
        self._collected = [True] * len(self._buckets)
        self._next = 0
        self._first = True

    def begin_batch(self, weight: float, *, last: bool) -> None:
        """Begin a micro-batch with this ``weight`` (0: it does not count); the ``last`` one sends the buckets."""
        first, self._first = self._first, False
        if self._voided:  # zeros of void_gradients, which the script need not zero
            self.drop_gradients()
        if not first and any(parameter.grad is not None for parameter in self.parameters):
            self._buckets[0].taken[0].refuse()
        self._weight, self._last = weight, last
        self._collected = [False] * len(self._buckets)
        if first:
            for parameter, stale in zip(self.parameters, self._stale, strict=True):
                if parameter.grad is not None:  # a real one was computed by this micro-batch
                    parameter.grad = stale
        if first and not self._alone:
            self._staging.begin()

    def batch_ends(self) -> None:
        """End a micro-batch that is not the last of its step: drop the gradients, as the script may do now."""
        self._collect_rest()
        self.drop_gradients()

    def backward_ended(self) -> None:
        """Take the gradients of buckets that the script's ``backward`` did not fill, so that these are guarded, too."""
        if not self.open:
            return
        for bucket, collected in zip(self._buckets, self._collected, strict=True):
            if not collected:
                bucket.take_early()

    def _finished(self, number: int, _parameter: torch.Tensor) -> None:
        """Collect a bucket when its watched gradient is complete; if others are missing, watch one of these."""
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
        """Take the gradients of a bucket, and send it in the last micro-batch."""
        self._collected[number] = True
        bucket = self._buckets[number]
        if self._sketch is not None and not self._held:
            self._sketch.add(bucket.parameters, gradients)
        if self._held or self._alone:
            bucket.gradients_held = gradients if self._held or self._weight else []
        elif self._weight:
            self._add(number, gradients)
        bucket.early = []
        for parameter, taken in zip(bucket.parameters, bucket.taken, strict=True):
            parameter.grad = taken
        if self._last and not self._held:
            self._send(number)
            self._ring_collected()

    def _send(self, number: int) -> None:
        if not self._alone:
            self._staging.send(number, self._holds[self._buckets[number].range])

    def _ring_collected(self) -> None:
        """Ring for all full buckets before the first one that is not full."""
        while self._next < len(self._buckets) and self._collected[self._next]:
            self._then_ring(self._next)
            self._next += 1

    def _then_ring(self, number: int) -> None:
        ring = self._ring if number < len(self._buckets) - 1 else lambda: None
        if self._alone:
            ring()
        elif self._between is not None:
            begin = partial(self._between.sum, self._staging.share(number), self.layout.parts[number].wire)
            self._staging.then(number, begin)
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
        """Give the held gradients, those computed since the last call, this ``weight``."""
        self._collect_rest()
        self._weight = weight
        for number, bucket in enumerate(self._buckets):
            if self._sketch is not None:
                self._sketch.add(bucket.parameters, bucket.gradients_held)
            if not self._alone:
                self._add(number, bucket.gradients_held if weight else [])
                bucket.gradients_held = []
            if self._last:
                self._send(number)
        if self._last:
            self._ring_collected()

    def _collect_rest(self) -> None:
        for number, (bucket, collected) in enumerate(zip(self._buckets, self._collected, strict=True)):
            gradients = bucket.gradients()
            if not collected:
                check_gradients(gradients)
                self._collect(number, gradients)
            elif not all(map(is_, gradients, bucket.taken)):
                bucket.taken[0].refuse()  # a gradient that the script zeroed or set would not count

    def flush(self) -> None:
        """Send all buckets, with zeros for gradients that backward did not reach; return when they are sent."""
        self._collect_rest()
        self._staging.flush()

    def finish(self, words: Words) -> None:
        """Send the control vector, after all buckets."""
        words.write(self._fields)
        self._used[:] = np.frombuffer(self._holds, np.uint8)
        self._times = self._places[: len(words.times)]
        self._times[:] = words.times
        self._ring()

    def take(self) -> Words:
        """Give each parameter its summed gradient (None if no rank had one), divided by the sum of the weights if the
        script gave any. Return the summed control vector.
        """
        words = Words.read(self._fields, self._times)
        if self._alone:
            for bucket in self._buckets:
                bucket.give_back()
        else:
            self._give_back(np.flatnonzero(self._used).tolist())
            if words.weight:
                torch._foreach_div_([p.grad for p in self.parameters if p.grad is not None], words.weight)
        self._check_zeroed()
        self.idle()
        return words

    def _check_zeroed(self) -> None:
        """Raise :class:`UserError` if torch would step a parameter whose gradient the script zeroed in place and no
        backward reached. (If none was reached, the batch does not count.)
        """
        missing = [n for n in self._in_place if self.parameters[n].grad is None]
        if missing and any(p.grad is not None for p in self.parameters):
            raise UserError(
                "zero_grad(set_to_none=False) leaves gradients of zero, and this batch does not use a parameter of"
                f" shape {list(self.parameters[missing[0]].shape)}: torch would still step it, with its momentum"
                " and weight decay, but on a node that joins it has none; call zero_grad() without set_to_none=False"
            )

    def _give_back(self, used: list[int]) -> None:
        if len(used) < len(self.parameters):
            self.drop_gradients()
        for index, gradient in zip(used, self._staging.back(used), strict=True):
            parameter = self.parameters[index]
            parameter.grad = self._gradient(parameter, gradient)

    def _gradient(self, parameter: nn.Parameter, summed: torch.Tensor) -> torch.Tensor:
        del parameter
        return summed

    def drop(self) -> None:
        """Drop the gradients of a void step."""
        self.void_gradients()
        self.idle()

    def void_gradients(self) -> None:
        """Set gradients to zero, so that a script that uses them after a void step does not fail."""
        for parameter in self.parameters:
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
        self._voided = True

    def drop_gradients(self) -> None:
        """Set all gradients to None."""
        self._voided = False
        for parameter in self.parameters:
            parameter.grad = None


def weakly(method: Callable[[int, torch.Tensor], None], number: int) -> Callable[[torch.Tensor], None]:
    """Return a hook that calls ``method`` with ``number``, but holds only a weak reference to its exchange: Python's
    garbage collector does not follow a tensor's hooks or ``grad``, and could not free the cycle.
    """
    reference = weakref.WeakMethod(method)

    def call(tensor: torch.Tensor) -> None:
        if (alive := reference()) is not None:
            alive(number, tensor)

    return call


def _wire_kind(parameter: nn.Parameter) -> tuple[int, str]:
    """Return (count, type) of the numbers to sum for ``parameter``; a complex number counts as two."""
    count = shards.padded_numel(parameter)
    if parameter.dtype in _NARROW:
        return count, "float32"
    if parameter.dtype in _REAL:
        return count * (1 + parameter.is_complex()), _REAL[parameter.dtype]
    raise UserError(f"a parameter is of {parameter.dtype}, whose gradients cannot be summed; use float32 or float64")
