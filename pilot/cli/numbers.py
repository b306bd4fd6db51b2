"""Numbers as options."""

from __future__ import annotations

import math
from typing import Any

import click

MOST = 1_000_000
"""Of nodes, trainers, epochs: what is more is a slip of the hand."""


class Count(click.IntRange):
    """A whole number up to ``MOST``."""

    def __init__(self, least: int = 1) -> None:
        super().__init__(min=least, max=MOST)


class FiniteRange(click.FloatRange):
    """A number within a range that is neither infinite nor NaN: click takes both for numbers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number
