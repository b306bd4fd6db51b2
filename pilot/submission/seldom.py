"""Seldom-synchronised training: how often nodes exchange what they have trained, and what they do with it.

Between two exchanges each node trains by itself, for at most ``every`` *inner* steps; that is a *round*. At its end the
nodes average the changes of their parameters, and an *outer* optimizer applies the average (DiLoCo: Douillard et al.
2023, arXiv:2311.08105; with a rate of 1 and no momentum it is local SGD: Stich 2019, arXiv:1805.09767).
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from inspect import signature
from typing import Any

from pilot.core.errors import UserError

SYNC = "PILOT_SYNC"
"""The variable that ``pilot submit --sync`` sets: its settings replace those of the script."""

ROUND, EXCHANGE_S, INNER_STEP_S = IN_ROUNDS = "round", "exchange_s", "inner_step_s"
"""What a session reports beside the script's metrics: its round's number, and the times of the last one."""

WIRES = ("float32", "bfloat16", "int8")
FRESH, COPY = "fresh", "copy"


@dataclass(frozen=True, slots=True)
class DiLoCo:
    """Exchange parameters every so many steps, and step an outer SGD by the average of their changes.

    Raises :class:`~pilot.core.errors.UserError` for values that make no sense.
    """

    every: int  #: most inner steps of a node in a round
    outer_lr: float = 0.7  #: learning rate of the outer SGD
    momentum: float = 0.9  #: its momentum
    nesterov: bool = True  #: whether that is Nesterov's
    wire: str = "float32"  #: the type in which float32 changes are sent, one of :data:`WIRES`
    inner: str = FRESH  #: the inner optimizer's state of a node that joins: "fresh", or a "copy" of another node's

    def __post_init__(self) -> None:
        if not (isinstance(self.every, int) and self.every >= 1):
            raise UserError(f"sync: every must be a whole number of steps of at least 1, got {self.every!r}")
        if not (isinstance(self.outer_lr, int | float) and 0 < self.outer_lr < float("inf")):
            raise UserError(f"sync: outer_lr must be a number above 0, got {self.outer_lr!r}")
        if not (isinstance(self.momentum, int | float) and 0 <= self.momentum < 1):
            raise UserError(f"sync: momentum must be a number of at least 0 and below 1, got {self.momentum!r}")
        if not isinstance(self.nesterov, bool):
            raise UserError(f"sync: nesterov must be True or False, got {self.nesterov!r}")
        for name, value, known in (("wire", self.wire, WIRES), ("inner", self.inner, (FRESH, COPY))):
            if value not in known:
                raise UserError(f"sync: {name} must be one of {', '.join(known)}; got {value!r}")

    def __str__(self) -> str:
        """Return the settings as ``--sync`` takes them."""
        return "diloco:" + ",".join(f"{name}={value}" for name, value in asdict(self).items())


def LocalSGD(every: int, wire: str = "float32", inner: str = FRESH) -> DiLoCo:  # noqa: N802  # like a class for scripts
    """Return the settings of local SGD: every so many steps each parameter becomes the average over the nodes."""
    return DiLoCo(every, outer_lr=1.0, momentum=0.0, nesterov=False, wire=wire, inner=inner)


def parsed(text: str) -> DiLoCo:
    """Return the settings in ``text``, such as ``diloco:every=50,wire=int8`` or ``localsgd:every=20``."""
    kind, _, given = text.partition(":")
    pairs = [tuple(map(str.strip, pair.split("=", 1))) for pair in given.split(",") if "=" in pair]
    values: dict[str, Any] = {name: _value(value) for name, value in pairs}
    make = _KINDS.get(kind.strip().lower())
    if make is None or "every" not in values:
        raise UserError(f"sync: give diloco:every=N or localsgd:every=N, N steps between two exchanges; got {text!r}")
    names = signature(make).parameters
    if unknown := sorted(values.keys() - names):
        raise UserError(f"sync: {unknown[0]!r} is none of {', '.join(names)}; got {text!r}")
    if len(values) != len([*filter(None, given.split(","))]):
        raise UserError(f"sync: give each NAME=VALUE once; got {text!r}")
    return make(**values)


_KINDS: dict[str, Callable[..., DiLoCo]] = {"diloco": DiLoCo, "localsgd": LocalSGD}


def _value(text: str) -> Any:
    """Return ``text`` as a truth value or a number, if it is one."""
    with suppress(ValueError, SyntaxError):
        return ast.literal_eval(text.capitalize())
    return text
