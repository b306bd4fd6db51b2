"""Tells of a loss that is no mean over the samples of its batch, where a batch is divided over the nodes: a sum, a mean
by class weights, over targets that are not ignored, or over what a mask selects; and one that compares samples with one
another. It trains otherwise on another number of nodes.

Known from autograd's graph of the loss that ``session.step`` gets, which says how it was reduced, and not by what it
was divided: a sum by another one is known by the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from pilot.train.data.sampler import Batching
from pilot.train.looks.spaced import Spaced
from pilot.train.script import refusal
from pilot.train.script.divided_sums import divides_by_a_sum
from pilot.train.script.objects import found_in, what_the_script_sees
from pilot.train.state.training import Training

_PARTS = 1000
_FIRST_LOOKS = 4
_MOST_NODES = 300
"""How far into the graph a look goes: losses are near its root."""
_SCALES = {"Mul", "Div"}
_BENT = {"Sqrt", "Rsqrt", "Pow", "Log", "Exp", "Abs", "Reciprocal", "Sigmoid", "Tanh", "Softplus"}
"""Functions of a number; and those of many, over samples."""
_NORMS = {"LinalgVectorNorm", "Norm", "Std", "Var", "Logsumexp", "Max", "Min", "Median"}
_PRODUCTS = {"Mm", "Cdist", "EuclideanDist"}
_PAIRS = {"Sub", "Add", "Mul", "Div"}
_GIVEN_AT = {"Addmm": 1, "Mm": 0, "Bmm": 0, "Convolution": 0}
"""Which of a layer's inputs is what it is applied to."""
_MEAN, _SUM = 1, 2
_DEPTH = 2
_INSTEAD = "take its mean (reduction='mean'), or divide it by its number of samples (len(x))"
_BY_SAMPLE = "take the mean over all samples (reduction='none', and then .mean())"
_PER_NODE = "with batch_size= each node's batch stays as large"


@dataclass
class _Reduction:
    """A node of the graph that makes a number from many. ``is_scaled``: that is multiplied, or divided, afterwards."""

    node: Any
    is_scaled: bool

    @property
    def kind(self) -> str:
        """As torch calls it: NllLoss, Sum."""
        return _kind(self.node)

    @property
    def reduces(self) -> int:
        """As the losses of torch say it."""
        return getattr(self.node, "_saved_reduction", _MEAN if self.kind == "Mean" else 0)

    def is_sum(self, samples: int) -> bool:
        """Whether it sums over so many samples."""
        return self.reduces == _SUM or self._rows == samples

    def is_divided(self, samples: int, user: Mapping[str, object]) -> bool:
        """Whether it is a sum over them that the script may divide by another one. ``user``: ``session.state``."""
        return self.is_scaled and self._rows > 0 and self._rows % samples == 0 and divides_by_a_sum(user)

    def is_bent(self, samples: int) -> bool:
        """Whether it is no linear function of each sample's part."""
        if _size(self.node) == 1 and all(_size(one) == 1 for one in _inputs(self.node)):
            return True
        rows = max((_shape(one)[0] for one in _inputs(self.node) if _shape(one)), default=0)
        return self.kind in _NORMS and rows > 0 and rows % samples == 0 and _is_of_batch(self.node)

    @cached_property
    def _rows(self) -> int:
        """Over how many it sums that come from the batch; 0: it does not."""
        rows = tuple(getattr(self.node, "_saved_self_sym_sizes", ()))[:1]
        is_such = self.kind == "Sum" and rows and _is_of_batch(self.node) and not _is_averaged(self.node)
        return int(rows[0]) if is_such else 0


class LossMeans:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._weighs = not training.steppers.apart
        self._spaced = Spaced(_PARTS, _FIRST_LOOKS)
        self._looks = False

    def begin(self, batching: Batching | None) -> None:
        """The loop begins; ``batching``: how many samples a step takes. (A batch per node is not divided.)"""
        self._looks = batching is not None and (batching.whole is not None or batching.micro is not None)
        self._weighs &= batching is not None and batching.accumulate == 1

    def look(self, loss: object, weight: object, samples: int) -> None:
        """Tell once. ``loss``, ``weight``: what the script gives to ``session.step``; ``samples``: of its batch."""
        root = loss.grad_fn if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None
        if root is None or samples < 2 or not self._looks or not self._spaced.is_due():
            return
        with self._spaced.doing():
            reductions = list(_reductions(root))
            told = [such for one in reductions if (such := _not_a_mean(one, samples))]
            if not told and weight is None:
                told = [
                    self._weighed(*by)
                    for one in reductions
                    if (by := _mean_by(one, samples, reductions, self._training.user))
                ]
            if told:
                self._looks = False
                is_such, instead = told[0]
                refusal.note(
                    f"the loss is {is_such}; each node has a part of the batch, and its gradient counts by its number"
                    f" of samples, so that this trains otherwise on another number of nodes: {instead}"
                )

    def _weighed(self, is_such: str, what: str, weight: str) -> tuple[str, str]:
        give = f"give {what} to session.step, and it is exact on any number of nodes: weight={weight}"
        return is_such, give if self._weighs else _BY_SAMPLE


def _not_a_mean(one: _Reduction, samples: int) -> tuple[str, str] | None:
    """What else it is, and what to do instead."""
    if not one.is_scaled and one.is_sum(samples):
        return f"a sum over the samples of its batch ({one.kind})", _INSTEAD
    if one.is_bent(samples):
        return f"a function of its batch that is no mean over its samples ({one.kind})", _PER_NODE
    if _is_of_the_largest(one.node, samples):
        return "one of the largest of its batch (topk?)", _PER_NODE
    if found := _compares(one.node, samples):
        return f"one that compares the samples of its batch with one another ({found}, contrastive?)", _PER_NODE
    return None


def _mean_by(
    one: _Reduction, samples: int, every: Sequence[_Reduction], user: Mapping[str, object]
) -> tuple[str, str, str] | None:
    """By what it is a mean, if not by samples; what to give as its weight, in words and as it is written. ``every``: of
    the loss.
    """
    if one.is_divided(samples, user) and not _smooths(one, every):
        return "a sum over its batch that is divided by another one (of a mask?)", "that", "mask.sum()"
    if one.reduces == _MEAN and one.kind.startswith("NllLoss"):
        if _has_weights(one.node):
            return "a mean by class weights", "their sum", "class_weights[y].sum()"
        if (ignored := _ignored(one.node)) is not None:
            is_such = f"a mean over those of its targets that are not {ignored}"
            return is_such, "their number", f"(y != {ignored}).sum()"
    if one.reduces == _MEAN and _is_of_a_part(one.node, samples):
        return "a mean over a part of its batch that is selected", "its size", "mask.sum()"
    return None


def _smooths(one: _Reduction, every: Sequence[_Reduction]) -> bool:
    """Whether it is a part of another one: torch's label smoothing."""
    others = {each for other in every if other.kind.startswith("NllLoss") for each in _inputs(other.node)}
    return not others.isdisjoint(islice(_below(one.node), _MOST_NODES))


def _reductions(root: Any) -> Iterator[_Reduction]:
    """What the loss is the sum, or another function, of; first that function, if it makes no mean of means."""
    rest, seen = [(root, False)], {root}
    for node, is_scaled in rest:
        inputs = _inputs(node)
        if any(_kind(one) == "Stack" for one in inputs):
            inputs = [each for one in inputs for each in _inputs(one)]
        if any(_size(one) > 1 for one in inputs) or _is_bent(node):
            yield _Reduction(node, is_scaled)
        elif len(rest) < _MOST_NODES:
            is_scaled |= _kind(node) in _SCALES
            rest += [(one, is_scaled) for one in inputs if one not in seen]
            seen.update(inputs)


def _is_bent(node: Any) -> bool:
    """Whether a number is no multiple of the one, or no sum of those, that it is computed from, which the batch has."""
    kind, inputs = _kind(node), _inputs(node)
    of_several = kind in _SCALES and len(inputs) > 1
    return (of_several or kind in _BENT) and all(map(_is_of_batch, inputs))


def _below(node: Any) -> Iterator[Any]:
    """What it was computed from: the nearest first, each once."""
    seen, rest = {node}, [node]
    for one in rest:
        new = [each for each in _inputs(one) if each not in seen]
        seen.update(new)
        rest += new
        yield from new


def _is_averaged(node: Any) -> bool:
    """Whether what it sums are means over samples."""
    return any(one.name() == "MeanBackward1" for one in islice(_below(node), _MOST_NODES) if _is_alike(one, node))


def _is_alike(one: Any, node: Any) -> bool:
    """Whether it has as many numbers as ``node`` gets."""
    return _size(one) == max(map(_size, _inputs(node)))


def _is_of_a_part(node: Any, samples: int) -> bool:
    """Whether it has as many numbers as something selected, and not as many for each sample."""
    rows = max((_shape(one)[0] for one in _inputs(node) if _shape(one)), default=0)
    return rows % samples > 0 and _selects(node, {"Index", "MaskedSelect"}, rows, samples)


def _is_of_the_largest(node: Any, samples: int) -> bool:
    """Whether it has those of the batch that are the largest."""
    rows = {_shape(one)[0] for one in _inputs(node) if _shape(one)}
    return any(_selects(node, {"Topk", "Sort"}, each, samples) for each in rows)


def _selects(node: Any, kinds: set[str], rows: int, samples: int) -> bool:
    """Whether so many rows have been selected by one of these from those of all samples."""
    same = (one for one in islice(_below(node), _MOST_NODES) if _shape(one)[:1] == (rows,))
    selected = [_inputs(one)[0] for one in same if _kind(one) in kinds]
    return any(_shape(of) and _shape(of)[0] % samples == 0 and _shape(of)[0] > rows for of in selected)


def _compares(node: Any, samples: int) -> str | None:
    """By which function of two tensors it compares each sample with each other one: both come from the batch."""
    for one in islice(_below(node), _MOST_NODES):
        inputs = _inputs(one)
        is_product = _kind(one) in _PRODUCTS and all(size % samples == 0 for size in _shape(one))
        is_such = is_product or (_kind(one) in _PAIRS and len(inputs) == 2 and _is_outer(inputs, samples))
        if is_such and len(inputs) == 2 and all(map(_is_of_batch, inputs)):
            return _kind(one)
    return None


def _is_outer(inputs: Sequence[Any], samples: int) -> bool:
    """Whether each sample of one meets all of the other: ``z[:, None] - z[None]``."""
    shapes = [_shape(_inputs(one)[0] if _kind(one) == "Expand" else one) for one in inputs]
    dims = max(map(len, shapes))
    first, other = ((1,) * (dims - len(shape)) + shape for shape in shapes)
    spread = [(a, b) for a, b in zip(first, other, strict=True) if a != b]
    ours = {"first" if b == 1 else "other" for a, b in spread if max(a, b) % samples == 0}
    return first[:1] != other[:1] and len(ours) == 2


def _is_of_batch(node: Any) -> bool:
    """Whether a layer has got what is no parameter for it: parameters alone are the same for each batch."""
    for one in chain((node,), _below(node)):
        kind, place = _kind(one), _GIVEN_AT.get(_kind(one))
        if kind.startswith("Embedding") or (place is not None and _is_given(one.next_functions[place][0])):
            return True
    return False


def _is_given(node: Any) -> bool:
    """Whether a layer's input was not computed: it needs no gradient, or is no parameter but needs one."""
    return node is None or (hasattr(node, "variable") and not isinstance(node.variable, nn.Parameter))


def _has_weights(node: Any) -> bool:
    try:
        return node._saved_weight is not None
    except RuntimeError:  # they are there, and backward has freed them
        return True


def _ignored(node: Any) -> int | None:
    """The number that it ignores, if something of the script's that may be its targets has it."""
    ignored = int(node._saved_ignore_index)
    ignored -= (ignored >> 63) << 64  # torch says it without its sign
    (given, *_) = map(_shape, _inputs(node))
    count = torch.Size((*given[:1], *given[2:])).numel()

    def may_be_targets(one: Any) -> bool:
        is_such = isinstance(one, torch.Tensor) and one.dtype is torch.int64 and one.layout is torch.strided
        return is_such and one.numel() == count

    targets = found_in(what_the_script_sees(), may_be_targets, _DEPTH)
    return ignored if any(bool((one == ignored).any()) for _, one in targets) else None


def _inputs(node: Any) -> list[Any]:
    return [one for one, _ in node.next_functions if one is not None]


def _kind(node: Any) -> str:
    """As torch calls what it belongs to."""
    return str(node.name()).partition("Backward")[0]


def _shape(node: Any) -> tuple[int, ...]:
    """Of what it gave."""
    given = node._input_metadata
    return tuple(given[0].shape) if given else ()


def _size(node: Any) -> int:
    return torch.Size(_shape(node)).numel()
