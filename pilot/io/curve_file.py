"""Scaling curves in files: two columns, nodes and samples per second, separated by a comma or white space.

The first line may be a header; ``#`` starts a comment. The point (0, 0) may be omitted.
"""

from __future__ import annotations

import math
from pathlib import Path

from pilot.core.curve import Curve
from pilot.core.errors import UserError
from pilot.io.files import read_regular

MOST_BYTES = 1024 * 1024
"""Enough for any curve: it has one line per node count."""


def read_curve(path: Path) -> Curve:
    """The curve in ``path``; :class:`UserError` names the file, the line and what is wrong with it."""
    points: list[tuple[float, float]] = []
    for number, line in enumerate(_lines(path), start=1):
        cells = line.split("#")[0].replace(",", " ").split()
        if not cells or (not points and _is_header(cells)):
            continue
        points.append(_point(f"{path}:{number}", cells, points[-1][0] if points else -math.inf))
    if not any(nodes > 0 for nodes, _ in points):
        raise UserError(f"{path}: no points; give lines of nodes and samples per second, for example 4,1210.5")
    try:
        return Curve.of(points)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _lines(path: Path) -> list[str]:
    try:
        return read_regular(path, MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise UserError(f"cannot read the scaling curve {path}: {reason}") from None


def _is_header(cells: list[str]) -> bool:
    return not any(_number(cell) is not None for cell in cells)


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _point(where: str, cells: list[str], before: float) -> tuple[float, float]:
    if len(cells) != 2:
        raise UserError(f"{where}: {len(cells)} columns; a scaling curve has two, nodes and samples per second")
    nodes, rate = _number(cells[0]), _number(cells[1])
    if nodes is None or rate is None or not (math.isfinite(nodes) and math.isfinite(rate)):
        raise UserError(f"{where}: {' '.join(cells)!r} is not two finite numbers")
    if rate < 0:
        raise UserError(f"{where}: the rate {rate:g} is negative")
    if nodes < 0 or nodes <= before:
        raise UserError(f"{where}: the node column must be increasing, got {nodes:g} after {before:g}")
    return nodes, rate
