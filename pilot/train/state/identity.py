"""The identity of a run: ranks that differ in it cannot train together, or resume from each other's checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from pilot.core.errors import UserError
from pilot.protocol.run_identity import (
    ACCEPTABLE,
    ALL_EPOCHS,
    ALL_ITERATIONS,
    DROP_LAST,
    LENGTH,
    MISSING,
    OPTIONS,
    ORDER,
    PER_NODE,
    SAMPLES,
    STREAM,
    WHOLE,
    ends_later,
)
from pilot.train.data.sampler import Batching
from pilot.train.state.block import Gather, gather_values
from pilot.train.state.optimizer_state import CONSTANT
from pilot.train.state.stepper import Steppers
from pilot.train.state.trained_set import TrainedSet

_GOALS = (ALL_EPOCHS, ALL_ITERATIONS)
"""Known from a session's loop on; a training may be continued to a later end."""

Identity = dict[str, str]
"""What must be the same on all ranks, by a readable name."""

_TENSORS = ("the parameter ", "the buffer ")
_OPTIMIZER = "the optimizer "
_MOST_OPTIMIZERS, _LONGEST_NAME, _LONGEST = 16, 200, 500
"""Of what the coordinator is told of a run, in every generation."""
_NOT_COMPARED = ("params", "param_names", "foreach", "fused", "capturable", "differentiable")
"""Options of an optimizer's group that are only names, or only affect how it computes."""


def of_training(model: nn.Module, steppers: Steppers, trained: TrainedSet) -> Identity:
    """Names, shapes, dtypes and strides of the parameters and buffers, and the optimizers' groups, when the session is
    created. (Which parameters are trained may change later, as part of the state.)
    """
    identity = {_of_optimizer(name): _its_groups(one) for name, one in steppers.optimizers.items()}
    identity[OPTIONS] = _options(steppers)
    for name, parameter in [*model.named_parameters(remove_duplicate=False), *trained.bare.items()]:
        is_trained = "trained" if parameter.requires_grad else "frozen"
        identity[f"the parameter {name}"] = f"{_of_tensor(parameter)}, strides {list(parameter.stride())}, {is_trained}"
    kept = model.state_dict()
    buffers = kept.keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    return identity | {f"the buffer {name}": _of_kept(kept[name]) for name in sorted(buffers)}


def of_data(
    length: int | None, batching: Batching, *, shuffle: str, replacement: bool = False, samples: str = ""
) -> Identity:
    """The identity of the training loader; ``length`` in samples, None for a stream; ``samples``: their checksum, see
    :func:`pilot.train.alike.sample_numbers.checksum`. (Ranks may split their shares differently.)"""
    per_node = batching.per_node is not None
    return ({SAMPLES: samples} if samples else {}) | {
        LENGTH: STREAM if length is None else str(length),
        PER_NODE if per_node else WHOLE: str(batching.per_node if per_node else batching.total),
        DROP_LAST: str(batching.drop_last),
        ORDER: f"shuffle={shuffle}, replacement={replacement}",
    }


def in_short(identity: Identity) -> Identity:
    """A short form for the ledger: the parameters as one number, and so are optimizers if they are many or have long
    names.
    """
    tensors, optimizers = (
        {name: words for name, words in identity.items() if name.startswith(begin)} for begin in (_TENSORS, _OPTIMIZER)
    )
    short = {"what is trained": f"{len(tensors)} tensors, {fingerprint(tensors):016x}"}
    if len(optimizers) <= _MOST_OPTIMIZERS and all(len(name) <= _LONGEST_NAME for name in optimizers):
        short |= optimizers
    else:
        short |= {"what steps it": f"{len(optimizers)} optimizers, {fingerprint(optimizers):016x}"}
    rest = {name: words for name, words in identity.items() if name not in tensors | optimizers}
    return {name: words[:_LONGEST] for name, words in (rest | short).items()}


def fingerprint(identity: Identity) -> int:
    """A 63-bit number that differs if the identities do."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(sorted(identity.items())), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def compare(identity: Identity, gather: Gather) -> None:
    """Compare it with those of all ranks; see :func:`expect_same`."""
    expect_same(gather_values(identity, Identity, gather))


def expect_same(identities: Sequence[Identity]) -> None:
    """:class:`UserError` with both values if ranks differ."""
    for rank, identity in enumerate(identities):
        for name, first, other in _differences(identities[0], identity):
            raise UserError(
                f"the ranks of this trainer differ: {name} is {first} on rank 0 and {other} on rank {rank};"
                " the script must do the same on all nodes (use no process id, host name or time, no generator of"
                " its own without a seed, no file that another of them has saved, and no unsorted list of files)"
            )


def changes(saved: Mapping[str, str], own: Identity, accepted: frozenset[str]) -> list[tuple[str, str, str]]:
    """Name, old and new value of each ``accepted`` difference to a checkpoint; :class:`UserError` with both values for
    any other difference.
    """
    found = [one for one in _differences(saved, own) if not ends_later(*one)]
    for name, before, now in found:
        if name not in accepted:
            kind = next((kind for kind, names in ACCEPTABLE.items() if name in names), None)
            accept = f", or accept it with pilot submit --accept-changes {kind}" if kind else ""
            raise UserError(
                f"the checkpoint is from a different run: {name} was {before} and is {now}; change it back, or submit"
                f" the script as a new trainer{accept}"
            )
    return found


def goals(identity: Mapping[str, str]) -> Identity:
    """Where the script's loop ends, according to ``identity``."""
    return {name: identity[name] for name in _GOALS if name in identity}


def for_another(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """A trainer's state for one that starts from it: where its loop ends is for itself to say."""
    return {**state, "identity": {name: words for name, words in state["identity"].items() if name not in _GOALS}}


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in [*one, *(name for name in other if name not in one)]:
        before_its_loop = name in _GOALS and not (name in one and name in other)
        if one.get(name) != other.get(name) and not before_its_loop:
            yield name, one.get(name, MISSING), other.get(name, MISSING)


def _of_kept(value: object) -> str:
    """A description of a buffer, or of a module's extra state."""
    return _of_tensor(value) if isinstance(value, torch.Tensor) else f"of type {type(value).__name__}"


def _of_optimizer(name: str) -> str:
    return f"{_OPTIMIZER}{name}" if name else _OPTIMIZER.strip()


def _its_groups(optimizer: torch.optim.Optimizer) -> str:
    groups = ", ".join(str(len(group["params"])) for group in optimizer.param_groups)
    return f"{type(optimizer).__name__} of {groups} parameters"


def _options(steppers: Steppers) -> str:
    """The options of all groups, in order."""
    return "; ".join(
        ", ".join(f"{option}={_plain(value)}" for option, value in group.items() if option not in _NOT_COMPARED)
        for group in steppers.groups()
    )


def _plain(value: object) -> object:
    if isinstance(value, CONSTANT):
        return getattr(value, "__qualname__", str(value))  # without an address
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _of_tensor(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
