"""What makes a run this one and no other: ranks that differ in it cannot train together, nor go on from its
checkpoints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import torch
from torch import nn

from pilot.core.errors import UserError
from pilot.train.blocks import gather_blocks
from pilot.train.sampler import Batching
from pilot.train.stepper import Steppers
from pilot.train.trained_set import TrainedSet

Identity = dict[str, str]
"""What is the same on all ranks, by its name in words."""

_decoder = msgspec.msgpack.Decoder(Identity)


def of_training(model: nn.Module, steppers: Steppers, trained: TrainedSet) -> Identity:
    """Names, shapes, dtypes and strides of what is trained, of the buffers, and the optimizers' groups: as they are
    when the session is made. (What of it is trained may change after that, with the state.)
    """
    identity = {_of_optimizer(name): _its_groups(one) for name, one in steppers.optimizers.items()}
    for name, parameter in [*model.named_parameters(remove_duplicate=False), *trained.bare.items()]:
        is_trained = "trained" if parameter.requires_grad else "frozen"
        identity[f"the parameter {name}"] = f"{_of_tensor(parameter)}, strides {list(parameter.stride())}, {is_trained}"
    kept = model.state_dict()
    buffers = kept.keys() - dict(model.named_parameters(remove_duplicate=False)).keys()
    return identity | {f"the buffer {name}": _of_kept(kept[name]) for name in sorted(buffers)}


def of_data(length: int | None, batching: Batching, *, shuffle: str, replacement: bool = False) -> Identity:
    """Of the training loader; ``length`` in samples, None for a stream. (How a rank cuts its share is its own.)"""
    per_node = batching.per_node is not None
    size = f"batch_size={batching.per_node}" if per_node else f"global_batch_size={batching.whole}"
    size += f", accumulate={batching.accumulate}" if batching.accumulate > 1 else ""
    return {
        "the length of the dataset": "a stream" if length is None else str(length),
        "the batches": f"{size}, drop_last={batching.drop_last}, shuffle={shuffle}, replacement={replacement}",
    }


def fingerprint(identity: Identity) -> int:
    """A number that differs where the identities do; it fits into 63 bits."""
    digest = hashlib.blake2b(msgspec.msgpack.encode(sorted(identity.items())), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def expect_same(identities: Sequence[Identity]) -> None:
    """:class:`UserError` with both values where ranks differ."""
    for rank, identity in enumerate(identities):
        for name, first, other in _differences(identities[0], identity):
            raise UserError(
                f"the ranks of this trainer differ: {name} is {first} on rank 0 and {other} on rank {rank};"
                " the script must make the same on all nodes (no process id, host name or time in it)"
            )


def expect_resumable(saved: Mapping[str, str], own: Identity) -> None:
    """:class:`UserError` with both values where a checkpoint is of another run."""
    for name, before, now in _differences(saved, own):
        raise UserError(
            f"the checkpoint is of another run: {name} was {before} and is {now}; go on with what it was, or submit"
            " the script as a new trainer"
        )


def tell(identity: Identity, gather: Callable[[list[int]], list[list[int]]]) -> list[Identity]:
    """What all ranks have, by rank; see :func:`~pilot.train.blocks.gather_blocks`."""
    return [_decoder.decode(block) for block in gather_blocks(msgspec.msgpack.encode(identity), gather)]


def _differences(one: Mapping[str, str], other: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name in [*one, *(name for name in other if name not in one)]:
        if one.get(name) != other.get(name):
            yield name, one.get(name, "missing"), other.get(name, "missing")


def _of_kept(value: object) -> str:
    """Of a buffer, or of what a module's ``get_extra_state`` gives."""
    return _of_tensor(value) if isinstance(value, torch.Tensor) else f"of type {type(value).__name__}"


def _of_optimizer(name: str) -> str:
    return f"the optimizer {name}" if name else "the optimizer"


def _its_groups(optimizer: torch.optim.Optimizer) -> str:
    groups = ", ".join(str(len(group["params"])) for group in optimizer.param_groups)
    return f"{type(optimizer).__name__} of {groups} parameters"


def _of_tensor(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
