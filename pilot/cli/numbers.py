"""Option types for numbers and times."""

from __future__ import annotations

import math
import re
import time
from typing import Any

import click

from pilot.core.errors import UserError
from pilot.core.spec import check_sizes

MOST = 1_000_000
"""A larger number of nodes, trainers or epochs is a typo."""

_UNITS = {"_s": "SECONDS", "hours": "HOURS"}
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TIMES = ("%H:%M", "%H:%M:%S")
_DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")


class Count(click.IntRange):
    """A whole number up to ``MOST``."""

    name = "whole number"

    def __init__(self, least: int = 1) -> None:
        super().__init__(min=least, max=MOST)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  # click's signature
        return "N"


class Sizes(click.ParamType[tuple[int, ...]]):
    """Increasing whole numbers separated by commas."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            sizes = tuple(map(int, str(value).split(",")))
            check_sizes(sizes, 1, MOST)
        except ValueError:
            self.fail(f"{value!r}: give whole numbers separated by commas, e.g. 1,2,4,8.", param, ctx)
        except UserError as error:
            self.fail(f"{error}.", param, ctx)
        return sizes


class FiniteRange(click.FloatRange):
    """A number within a range. Rejects infinity and NaN, which click accepts. The help shows its unit, taken from
    the end of the option's name."""

    name = "number"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002  # click's signature
        return next((unit for suffix, unit in _UNITS.items() if (param.name or "").endswith(suffix)), "NUMBER")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


def moment(text: str) -> float:
    """A past time as Unix time, from a duration (``90s``, ``10m``, ``2h``, ``1d`` ago), a time today, or a date."""
    if ago := re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smhd])", text):
        return time.time() - float(ago[1]) * _UNIT_S[ago[2]]
    today = time.strftime("%Y-%m-%d")
    for dated, form in [*((f"{today} {text}", f"%Y-%m-%d {form}") for form in _TIMES), *((text, f) for f in _DATES)]:
        try:
            return time.mktime(time.strptime(dated, form))
        except (ValueError, OverflowError):
            continue
    raise click.BadParameter(f"{text!r} is not a time; use 10m, 2h, 14:30 or 2026-11-22 14:30.")
