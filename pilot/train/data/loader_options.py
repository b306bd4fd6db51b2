"""Which of ``DataLoader``'s options the training loader accepts, and why it refuses the others."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, cast

from torch.utils.data import Dataset, IterableDataset

from pilot.core.errors import UserError
from pilot.train.data.auto_loading import AUTO

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
    if workers != AUTO and not (isinstance(workers, int) and workers >= 0):
        raise UserError(f'session.loader: num_workers is a number, 0 or more, or "{AUTO}"; got {workers!r}')
    if options.get("timeout") and not options.get("num_workers"):
        raise UserError("session.loader: timeout is how long to wait for workers, so it needs num_workers")
    if options.get("prefetch_factor") is not None and options["prefetch_factor"] < 1:
        raise UserError(f"session.loader: prefetch_factor must be at least 1, got {options['prefetch_factor']}")
    return {name: value for name, value in options.items() if name in _TAKEN}
