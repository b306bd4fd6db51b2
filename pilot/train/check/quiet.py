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

_DROPOUTS = (
    "dropout",
    "dropout1d",
    "dropout2d",
    "dropout3d",
    "alpha_dropout",
    "feature_alpha_dropout",
)

_seen: dict[str, None] = {}

Function = Callable[..., Any]


def take_out() -> None:
    """Disable it in this process from now on."""
    for name in _DROPOUTS:
        setattr(functional, name, _without_dropout(getattr(functional, name)))
    replaced: Any = functional
    replaced.batch_norm = _with_running_statistics(functional.batch_norm)
    replaced.scaled_dot_product_attention = _attention(functional.scaled_dot_product_attention)


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


def _without_dropout(original: Function) -> Function:
    signature = inspect.signature(original)

    def dropout(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        if bound.arguments["p"] and bound.arguments["training"]:
            _seen["dropout"] = None
        bound.arguments["training"] = False
        return original(*bound.args, **bound.kwargs)

    return dropout


def _with_running_statistics(original: Function) -> Function:
    signature = inspect.signature(original)

    def batch_norm(*given: Any, **named: Any) -> Any:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        if bound.arguments["training"]:
            known = bound.arguments["running_mean"] is not None
            _seen["batch norm" if known else "batch norm without running statistics (not taken out)"] = None
            bound.arguments["training"] = not known
        return original(*bound.args, **bound.kwargs)

    return batch_norm


def _attention(original: Function) -> Function:
    def scaled_dot_product_attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *rest: Any, **named: Any
    ) -> Any:
        if dropout_p:
            _seen["dropout"] = None
        return original(query, key, value, attn_mask, 0.0, *rest, **named)

    return scaled_dot_product_attention
