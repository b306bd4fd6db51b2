"""What the training loader takes of torch's ``DataLoader``: its options, or one that exists; and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, cast

from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from pilot.core.errors import UserError

_TAKEN = frozenset(
    {
        "num_workers",
        "collate_fn",
        "pin_memory",
        "pin_memory_device",
        "timeout",
        "worker_init_fn",
        "multiprocessing_context",
        "prefetch_factor",
        "persistent_workers",
        "in_order",
    }
)
_INSTEAD = {
    "sampler": "the order of samples follows from the session's seed; to use a part of the data, take"
    " torch.utils.data.Subset; to sample with replacement, replacement=True, num_samples=...",
    "batch_sampler": "the samples of a step follow from batch_size or global_batch_size, on any number of nodes",
    "generator": "the order follows from the seed of pilot.train.session",
}


def length_of(dataset: Dataset[Any], user: str) -> int:
    """Its samples; :class:`UserError` if ``user``, a method of the session, cannot read it by index."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UserError(f"{user} needs a map-style dataset with a length; session.stream trains on one without")
    if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "__getitems__")):
        raise UserError(
            f"{user} needs a dataset with __getitem__; {type(dataset).__name__} has none (give the dataset itself, not"
            " a DataLoader)"
        )
    return len(cast(Sized, dataset))


def arguments_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What ``session.loader`` takes of ``loader``, by the names of its own arguments and options."""
    length_of(loader.dataset, "session.loader")
    sampler = loader.sampler
    shuffles = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    if loader.batch_size is None or not (shuffles or type(sampler) is SequentialSampler):
        chosen = sampler if loader.batch_size is not None else loader.batch_sampler
        raise UserError(
            f"session.loader decides itself which samples come, so it takes no DataLoader with a"
            f" {type(chosen).__name__}: give it one with batch_size= and shuffle=, or the dataset"
            " (a part of it is a torch.utils.data.Subset; draws are replacement=True)"
        )
    options = {name: value for name in (*_TAKEN, "generator") if (value := getattr(loader, name, None))}
    if options.get("collate_fn") is default_collate:
        del options["collate_fn"]
    return options | {"batch_size": loader.batch_size, "drop_last": loader.drop_last, "shuffle": shuffles}


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options for torch's ``DataLoader``. Raises an error if one is invalid, or would change which samples ranks
    get."""
    for name, instead in _INSTEAD.items():
        if options.get(name) is not None:
            raise UserError(f"session.loader takes no {name}: {instead}")
    if unknown := sorted(options.keys() - _TAKEN - _INSTEAD.keys()):
        raise UserError(f"session.loader and torch's DataLoader have no option {unknown[0]}")
    if not options.get("in_order", True):
        raise UserError(
            "session.loader takes no in_order=False: samples would be counted for the wrong batch; remove it"
        )
    workers = options.get("num_workers", 0)
    if not (isinstance(workers, int) and workers >= 0):
        raise UserError(
            f"session.loader: num_workers is how many loader processes each rank has, got {workers!r}: pass a number,"
            " such as the cores of a node divided by its ranks, minus one"
        )
    if options.get("timeout") and not options.get("num_workers"):
        raise UserError("session.loader: timeout is how long to wait for workers, so it needs num_workers")
    if options.get("prefetch_factor") is not None and options["prefetch_factor"] < 1:
        raise UserError(f"session.loader: prefetch_factor must be at least 1, got {options['prefetch_factor']}")
    return {name: value for name, value in options.items() if name in _TAKEN}
