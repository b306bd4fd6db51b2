"""FLEET's curve model: its extrapolation of training rates (appendix B.3, eq. 1) and the measurements behind it.

    python -m benchmarks.fleet_rates --json rates.json

Prints how far eq. 1 is off at each count of FreeTrain's Table 2 when given the rates up to 2, 4 or 8 nodes, exact and
2% wrong: the factor between two neighbouring counts is taken to the power of all further counts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from benchmarks.planners import EFFICIENCY, KILOSAMPLES_PER_S, NODES

BATCHES, TIMED_BATCHES = 48, 20
"""The number of batches that profile a count; only the last ones are timed (B.3)."""
NOISE = 0.02


@dataclass(frozen=True, slots=True)
class ProfilePlan:
    """The measurements of an ensemble: every number of GPUs from 1 to ``most``.

    ``paces``: M_a, the GPUs with which the slowest trainer, if it scaled, would match the fastest on one. ``base``:
    M_b, twice a node's GPUs, from which eq. 1 goes on.
    """

    paces: int
    base: int

    @property
    def most(self) -> int:
        """M_t."""
        return max(self.paces, self.base)


def profile_plan(one_gpu_rates: Sequence[float], gpus_per_node: int) -> ProfilePlan:
    """For trainers with these one-GPU rates (above 0). M_a is rounded up; the appendix prints plain brackets."""
    return ProfilePlan(math.ceil(max(one_gpu_rates) / min(one_gpu_rates)), 2 * gpus_per_node)


def extrapolated(count: int, base: int, at_base: float, before: float) -> float:
    """The rate on ``count`` GPUs by eq. 1, from those on ``base`` (M_b, 2 or more) and on one fewer (``before``)."""
    per_gpu, per_gpu_before = at_base / base, before / (base - 1)
    return count * per_gpu * (per_gpu / per_gpu_before) ** (count - base)


@dataclass(frozen=True, slots=True)
class Row:
    """Predicted ÷ true rate on ``nodes``, measured up to ``base``: median and extremes over all curves."""

    base: int
    noise: float
    nodes: int
    least: float
    middle: float
    most: float


def rows() -> Iterator[Row]:
    """With noise of either sign: the rate on ``base`` too high by this much and the one before too low, or the
    reverse.
    """
    for base in (2, 4, 8):
        for noise in (0.0, NOISE):
            for nodes in [n for n in NODES if n > base]:
                off = sorted(
                    extrapolated(nodes, base, curve.at(base) * (1 + sign), curve.at(base - 1) * (1 - sign))
                    / curve.at(nodes)
                    for curve in EFFICIENCY
                    for sign in ((noise, -noise) if noise else (0.0,))
                )
                yield Row(base, noise, nodes, off[0], median(off), off[-1])


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows here.")
def main(target: Path | None) -> None:
    table = Table(title=f"eq. 1: predicted ÷ true, {len(KILOSAMPLES_PER_S)} curves of FreeTrain's Table 2")
    for column in ("measured up to", "noise", "nodes", "least", "median", "most"):
        table.add_column(column, justify="right")
    found = list(rows())
    for row in found:
        ratios = (f"{ratio:.3g}" for ratio in (row.least, row.middle, row.most))
        table.add_row(str(row.base), f"{row.noise:.0%}", str(row.nodes), *ratios)
    Console().print(table)
    if target is not None:
        target.write_text(json.dumps([asdict(row) for row in found], indent=2) + "\n")


if __name__ == "__main__":
    main()
