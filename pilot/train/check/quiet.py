"""Disables the operations that differ between ranks by design, so that they do not hide other differences in ``pilot
check``. Dropout keeps everything; batch norm uses its running statistics, if it has any.

All of torch's modules call the functions of ``torch.nn.functional`` through that module, so these are replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from pilot.train.data import rng

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")

_used: dict[str, None] = {}

Function = Callable[..., Any]
Arguments = dict[str, Any]


def disable_randomness() -> None:
    """Disable dropout and batch statistics in this process from now on."""
    for name in _DROPOUTS:
        _change(name, _dropout, inspect.signature(getattr(functional, name)))
    _change("batch_norm", _batch_norm, inspect.signature(functional.batch_norm))
    _change("scaled_dot_product_attention", _attention, inspect.signature(_like_attention))


def note_random_numbers() -> None:
    """Record whether the script drew random numbers since the session seeded the generators for this batch."""
    now = rng.positions()
    with rng.untouched():
        rng.seed_all(torch.initial_seed())
        begun = rng.positions()
    if now != begun:
        _used["random numbers that are drawn for each batch (not disabled: turn them off for the check)"] = None


def used() -> list[str]:
    """Return the operations that the script has used and that differ between ranks by design."""
    return list(_used)


def _change(name: str, change: Callable[[Arguments], str], signature: inspect.Signature) -> None:
    """Replace a function by one whose arguments ``change`` edits; it returns the name of what it disabled, or ""."""
    original: Function = getattr(functional, name)

    def changed(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        if disabled := change(bound.arguments):
            _used[disabled] = None
        return original(*bound.args, **bound.kwargs)

    setattr(functional, name, changed)


def _dropout(given: Arguments) -> str:
    is_used = given["p"] and given["training"]
    given["training"] = False
    return "dropout" if is_used else ""


def _batch_norm(given: Arguments) -> str:
    if not given["training"]:
        return ""
    given["training"] = given["running_mean"] is None
    return "batch norm without running statistics (not disabled)" if given["training"] else "batch norm"


def _attention(given: Arguments) -> str:
    is_used = given["dropout_p"]
    given["dropout_p"] = 0.0
    return "dropout" if is_used else ""


def _like_attention(  # torch's own function has no signature
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **named: Any
) -> None: ...
