"""The trainers of a replay: a CSV of trainers and a JSON of scaling curves (docs/research/traces.md), and their mishaps
(Huawei §5.4): wrong estimates, bugs, cancellations. Mishaps are drawn once per trainer, so they do not depend on the
planner.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec, listed
from pilot.research.traces.text_files import bad_input, number, read_lines, read_records

PRIORITY = "priority"
"""An optional column: the factor for the objective ``priority``; default 1."""

SIZES = "sizes"
"""An optional column: the allowed node counts, ascending, separated by spaces; default: all."""

BUDGET = "budget"
"""An optional column: the node-hours after which the trainer stops; default: no limit."""

SPEEDS, TYPES, SHARES = "speeds", "types", "shares"
"""Optional columns, for pools of several types: how fast it computes on a node of each (``a100=1 v100=0.5``; default:
1 on all), which of them it can use (default: all), and ``equal`` if all its nodes get the same share of the samples."""

COLUMNS = ("trainer", "submit_s", "min_nodes", "max_nodes", "rescale_up_s", "rescale_down_s", "samples", "curve")


class TrainerEnd(StrEnum):
    """How a trainer in a replay ends once it has processed its samples."""

    FINISHES = "finishes"
    CANCELLED = "cancelled"
    """Its user ends it before its work is done."""
    FAILS = "fails"
    """Its script raises an error."""
    HANGS = "hangs"
    """It stops making progress, never ends and keeps its nodes."""


@dataclass(frozen=True, slots=True)
class WorkloadRow:
    """One trainer in a replay."""

    spec: TrainerSpec  #: as it is submitted; its curve is fixed
    submit_s: float  #: when, on the trace's clock
    samples: (
        float  #: how many it processes until its ``ending``; ``spec.samples`` is all of its work as planners see it
    )
    curve: int  #: index of its scaling curve in the curves file; trainers that share one are of the same kind
    ending: TrainerEnd = TrainerEnd.FINISHES  #: how it ends then
    equal_shares: bool = False  #: its slowest node decides how fast all compute

    def speeds_on(self, types: Sequence[str]) -> tuple[float, ...]:
        """How fast it computes on a node of each type; 0: it cannot use them. Raises UserError if it has speeds, but
        not on all that it can use."""
        known, usable = dict(self.spec.speeds), [name for name in types if name in (self.spec.types or types)]
        if known and (unknown := [name for name in usable if name not in known]):
            raise UserError(f"trainer {self.spec.trainer} has no speed on nodes of type {unknown[0]}")
        return tuple(known.get(name, 1.0) if name in usable else 0.0 for name in types)

    def rescaled(self, factor: float) -> WorkloadRow:
        """The same trainer with its rescale costs multiplied by ``factor`` (FreeTrain §5.4.2)."""
        up_s, down_s = self.spec.rescale_up_s * factor, self.spec.rescale_down_s * factor
        return replace(self, spec=replace(self.spec, rescale_up_s=up_s, rescale_down_s=down_s))

    def sized(self, sizes: Sequence[int]) -> WorkloadRow:
        """The same trainer with the ``sizes`` within its bounds. Raises UserError if no size does."""
        spec = self.spec
        fit = tuple(n for n in sizes if spec.min_nodes <= n <= spec.max_nodes)
        if not fit:
            bounds = f"from {spec.min_nodes} to {spec.max_nodes} nodes"
            raise UserError(f"trainer {spec.trainer} runs on {bounds}, and none of the sizes {listed(tuple(sizes))} is")
        return replace(self, spec=replace(spec, sizes=fit))

    def on_curve(self, index: int, curves: Sequence[tuple[Curve, Curve | None]]) -> WorkloadRow:
        """The same trainer with another scaling curve (FreeTrain §5.4.1)."""
        rate, value = curves[index]
        return replace(self, spec=replace(self.spec, curve=rate, objective_curve=value), curve=index)


def read_workload(trainers: Path, curves: Path) -> list[WorkloadRow]:
    """Read the trainers in submission order. Raises UserError, with file and line, if a column is missing, a value is
    invalid, a trainer's id is used twice, or a curve's index is unknown."""
    known = read_curves(curves)
    seen: set[str] = set()
    submissions = []
    for row in _rows(trainers):
        submissions.append(_submission(row, known))
        if row.trainer in seen:
            raise row.bad(f"trainer {row.trainer} appears twice")
        seen.add(row.trainer)
    if not submissions:
        raise UserError(f"{trainers}: no trainers; it needs at least one row after its header")
    return sorted(submissions, key=lambda submission: submission.submit_s)


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the trainers file; errors name the file and the line."""

    path: Path
    line: int
    fields: Mapping[str, str]

    @property
    def trainer(self) -> str:
        return self.fields["trainer"]

    def number(self, column: str, least: float = 0.0) -> float:
        return number(self.path, self.line, column, self.fields[column], least=least)

    def integer(self, column: str, least: float = 0.0) -> int:
        value = self.number(column, least)
        if value != int(value):
            raise self.bad(f"{column} must be a whole number, got {value:g}")
        return int(value)

    def sizes(self) -> tuple[int, ...]:
        text = self.fields.get(SIZES) or ""
        try:
            return tuple(map(int, text.split()))
        except ValueError:
            raise self.bad(f"{SIZES} must be whole numbers separated by spaces, got {text!r}") from None

    def words(self, column: str) -> tuple[str, ...]:
        return tuple((self.fields.get(column) or "").split())

    def speeds(self) -> tuple[tuple[str, float], ...]:
        pairs = [word.partition("=") for word in self.words(SPEEDS)]
        return tuple(
            (name, number(self.path, self.line, f"the speed on {name}", s, least=1e-6)) for name, _, s in pairs
        )

    def bad(self, message: str) -> UserError:
        return bad_input(self.path, self.line, message)


def _rows(path: Path) -> Iterator[_Row]:
    records = read_records(path, read_lines(path))
    _, header = next(records, (1, []))
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise bad_input(path, 1, f"missing column {', '.join(missing)}; the header is {','.join(COLUMNS)}")
    for line, fields in records:
        if fields and len(fields) != len(header):
            raise bad_input(path, line, f"expected {len(header)} columns, as the header has, found {len(fields)}")
        if fields:
            yield _Row(path, line, dict(zip(header, fields, strict=True)))


def read_curves(path: Path) -> list[tuple[Curve, Curve | None]]:
    """Read the curves file: for each curve, samples per second and, if given, the value per second to maximise."""
    text = "".join(read_lines(path))
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise bad_input(path, error.lineno, f"not JSON: {error.msg}") from None
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: expected a list of curves, each with nodes and samples_per_s")
    return [_curves(path, index, entry) for index, entry in enumerate(entries)]


def _curves(path: Path, index: int, entry: Any) -> tuple[Curve, Curve | None]:
    where = f"{path}: curve {index}"
    if not isinstance(entry, dict) or not {"nodes", "samples_per_s"} <= entry.keys():
        raise UserError(f"{where}: expected an object with nodes and samples_per_s")
    rate = _curve(where, entry["nodes"], entry["samples_per_s"])
    if not rate.single_node_rate() > 0:
        raise UserError(f"{where}: samples_per_s must be greater than 0 from its first node count on")
    value = entry.get("objective_per_s")
    return rate, None if value is None else _curve(where, entry["nodes"], value)


def _curve(where: str, nodes: Any, per_s: Any) -> Curve:
    try:
        return Curve.of(zip(nodes, per_s, strict=True))
    except (TypeError, ValueError):
        raise UserError(f"{where}: nodes and its values must be lists of numbers of the same length") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _submission(row: _Row, curves: Sequence[tuple[Curve, Curve | None]]) -> WorkloadRow:
    index = row.integer("curve")
    if index >= len(curves):
        raise row.bad(f"curve {index} is unknown; the curves file has 0 to {len(curves) - 1}")
    if (shares := row.words(SHARES)) not in ((), ("equal",)):
        raise row.bad(f"{SHARES} must be empty or equal, got {' '.join(shares)}")
    spec = _spec(row, *curves[index])
    return WorkloadRow(spec, row.number("submit_s"), row.number("samples"), index, equal_shares=bool(shares))


def _spec(row: _Row, rate: Curve, objective: Curve | None) -> TrainerSpec:
    min_nodes, max_nodes = row.integer("min_nodes", 1), row.integer("max_nodes", 1)
    up_s, down_s = row.number("rescale_up_s"), row.number("rescale_down_s")
    priority = row.number(PRIORITY) if row.fields.get(PRIORITY) else 1.0
    budget = row.number(BUDGET) if row.fields.get(BUDGET) else None
    samples, speeds, sizes = row.number("samples"), row.speeds(), row.sizes()
    try:
        return TrainerSpec(
            trainer=TrainerId(row.trainer),
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            curve=rate,
            fixed_curve=True,
            rescale_up_s=up_s,
            rescale_down_s=down_s,
            priority=priority,
            objective_curve=objective,
            sizes=sizes,
            budget_node_hours=budget,
            samples=samples,
            types=row.words(TYPES),
            speeds=speeds,
        )
    except UserError as error:  # its numbers contradict each other
        raise row.bad(str(error)) from None


BUG_WITHIN_S = 300.0
"""A bug strikes within this time on one node, and sooner on more nodes."""


@dataclass(frozen=True, slots=True)
class Mishaps:
    """The share of trainers with each ending, and the error of estimates. Raises UserError for shares that are not
    between 0 and 1, or add up to more than 1."""

    eta_noise: float = 0.0  #: planners see the true work times a factor between ``1 - eta_noise`` and ``1 + eta_noise``
    hang_share: float = 0.0  #: trainers that stop making progress within five minutes of training, and never end
    fail_share: float = 0.0  #: trainers that end in an error within five minutes of training
    cancel_share: float = 0.0  #: trainers that their users cancel after a random share of their work
    seed: int = 1  #: of everything that is drawn

    def __post_init__(self) -> None:
        shares = (self.hang_share, self.fail_share, self.cancel_share)
        if not all(0 <= share <= 1 for share in (self.eta_noise, *shares)):
            raise UserError("the noise and the shares of trainers must be between 0 and 1")
        if sum(shares) > 1:
            raise UserError(
                f"shares of trainers that hang, fail and are cancelled add up to {sum(shares):g}, more than 1"
            )


def befallen(rows: Sequence[WorkloadRow], mishaps: Mishaps) -> list[WorkloadRow]:
    """``rows`` with the mishaps drawn for each. A trainer spared at one share is also spared at any smaller one."""
    if mishaps == Mishaps(seed=mishaps.seed):
        return list(rows)
    rng = random.Random(mishaps.seed)
    return [_befallen(row, mishaps, rng.uniform(-1, 1), rng.random(), rng.random()) for row in rows]


def _befallen(row: WorkloadRow, mishaps: Mishaps, off: float, lot: float, when: float) -> WorkloadRow:
    estimate = None if row.spec.samples is None else row.spec.samples * (1 + mishaps.eta_noise * off)
    noisy = replace(row, spec=replace(row.spec, samples=estimate))
    curve = row.spec.curve
    bug_at = when * BUG_WITHIN_S * (curve.single_node_rate() if curve is not None else 1.0)
    for share, ending, samples in (
        (mishaps.hang_share, TrainerEnd.HANGS, bug_at),
        (mishaps.fail_share, TrainerEnd.FAILS, bug_at),
        (mishaps.cancel_share, TrainerEnd.CANCELLED, when * row.samples),
    ):
        if lot < share:
            return replace(noisy, samples=min(row.samples, samples), ending=ending)
        lot -= share
    return noisy
