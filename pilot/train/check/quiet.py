"""Detects and disables what differs between ranks by design in a script run by ``pilot check``, so that it does not
hide other differences. Dropout keeps everything; batch norm uses its running statistics, if it has any.

All of torch's modules call functions of ``torch.nn.functional`` through that module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from pilot.train.data import rng

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")

_seen: dict[str, None] = {}

Function = Callable[..., Any]
Arguments = dict[str, Any]


def take_out() -> None:
    """Disable it in this process from now on."""
    for name in _DROPOUTS:
        _change(name, _dropout, inspect.signature(getattr(functional, name)))
    _change("batch_norm", _batch_norm, inspect.signature(functional.batch_norm))
    _change("scaled_dot_product_attention", _attention, inspect.signature(_like_attention))


def look_at_random_numbers() -> None:
    """Note whether the script drew random numbers since the batch began, when the session seeded the generators."""
    now = rng.positions()
    with rng.untouched():
        rng.seed_all(torch.initial_seed())
        begun = rng.positions()
    if now != begun:
        _seen["random numbers that are drawn for each batch (not taken out: turn them off for the check)"] = None


def seen() -> list[str]:
    """What the script has used so far."""
    return list(_seen)


def _change(name: str, change: Callable[[Arguments], str], signature: inspect.Signature) -> None:
    """Have ``change`` change the arguments of a function, and say what was taken out ("": nothing)."""
    original: Function = getattr(functional, name)

    def changed(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        if used := change(bound.arguments):
            _seen[used] = None
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
    return "batch norm without running statistics (not taken out)" if given["training"] else "batch norm"


def _attention(given: Arguments) -> str:
    is_used = given["dropout_p"]
    given["dropout_p"] = 0.0
    return "dropout" if is_used else ""


def _like_attention(  # torch does not tell the signature of its own
    query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **named: Any
) -> None: ...
