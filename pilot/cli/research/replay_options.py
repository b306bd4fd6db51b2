"""The options of ``pilot replay`` that can be swept: several values separated by commas, one replay for each."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pilot.cli.options import Count, FiniteRange, Parallel
from pilot.core.pool.pool import NODE_ORDER_NAMES
from pilot.planners import NAMES, SOLVERS

if TYPE_CHECKING:
    from pilot.research.sim.sweep import Case

MEASURE_NOISE = 0.03

MEASURING = {"profile": "--profile", "measure_noise": "--measure-noise"}
"""Options that matter only in replays that measure trainers."""

Values = tuple[Any, ...]


class Several(click.ParamType):  # type: ignore[type-arg]  # generic only for the type checker
    """Values of ``kind``, separated by commas."""

    name = "several"

    def __init__(self, kind: Any) -> None:
        self.kind = click.types.convert_type(kind)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Values:
        """The values, converted; a repeated one stays repeated."""
        if isinstance(value, tuple):
            return value
        return tuple(self.kind.convert(item.strip(), param, ctx) for item in value.split(","))


def _known(text: str) -> str:
    from pilot.research.sim.knowledge import check

    return check(text)


# The largest number keeps arithmetic from overflowing.
_NUMBER = FiniteRange(min=0, max=1e9)
_POSITIVE = FiniteRange(min=0, max=1e9, min_open=True)
_SHARE = FiniteRange(min=0, max=1)

SWEPT: Mapping[str, tuple[str, Any, str | None, str]] = {
    "--planner": ("NAMES", click.Choice(NAMES), "milp", f"How nodes are shared out: {', '.join(NAMES)}."),
    "--solver": ("NAMES", click.Choice(SOLVERS), "cbc", "Solver of the MILP: cbc, glpk or highs."),
    "--objective": (
        "NAMES",
        str,
        "given",
        "What plans maximise: given (in the curves file), scaling-efficiency, throughput, priority,"
        " mean-completion-time or MODULE:FUNCTION.",
    ),
    "--t-fwd-s": ("SECONDS", _POSITIVE, "120", "Forward-looking time (see pilot up)."),
    "--max-parallel-trainers": (
        "COUNTS",
        Parallel(),
        "auto",
        "Most trainers to run at once (Pj_max); auto: as many as the pool needs.",
    ),
    "--longest-wait-s": (
        "SECONDS",
        _NUMBER,
        "0",
        "Time without nodes after which a trainer has its turn (see pilot up); 0: none.",
    ),
    "--rescale-scale": ("FACTORS", _NUMBER, "1", "Multiply rescale costs by this."),
    "--solver-latency-s": ("SECONDS", _NUMBER, "0", "Simulated solver delay."),
    "--node-order": (
        "NAMES",
        click.Choice(NODE_ORDER_NAMES),
        "hostname",
        "Which free nodes a trainer gets first: hostname, join, or topology (those nearest to its own, see --site).",
    ),
    "--accounting": (
        "NAMES",
        click.Choice(("paper", "physical")),
        "paper",
        "What rescaling costs. paper: its duration at the previous rate; physical: it pauses the trainer, and so does "
        "a start.",
    ),
    "--completions": (
        "NAMES",
        click.Choice(("at-once", "at-node-events")),
        "at-once",
        "When completions and arrivals are planned for: at-once, or at-node-events, the next change of the pool "
        "(as in the authors' replay code).",
    ),
    "--decide-every-s": ("SECONDS", _POSITIVE, None, "Time between plans.  [default: plan at every event]"),
    "--know": (
        "NAMES",
        _known,
        None,
        "What planners know of the scaling curves: truth, measured (only what trainers report), guess:linear, "
        "guess:huawei (0.8^log2 n of linear), guess:other (the next curve of the file), guess:N (curve N for all) or "
        "guess:factor:SD (the truth times a random factor at each count).  [default: truth; with --profile measured]",
    ),
    "--profile": (
        "NAMES",
        click.Choice(("auto", "inverse", "never")),
        None,
        "How trainers with unknown curves are profiled: auto, inverse or never (see pilot submit).  "
        "[default: with --know measured, auto]",
    ),
    "--nodes": ("COUNTS", Count(), None, "Instead of EVENTS: a pool of this many nodes."),
    "--gpus-per-node": (
        "COUNTS",
        Count(),
        None,
        "Treat the nodes of the pool as GPUs, this many to a real node; trainers span as few nodes as possible.",
    ),
    "--measure-noise": (
        "SHARES",
        _SHARE,
        None,
        f"Relative error of a measured rate (standard deviation).  [default: {MEASURE_NOISE}]",
    ),
    "--known-ends": ("SHARES", _SHARE, "0", "Share of nodes whose end is known in advance."),
    "--node-types": (
        "NAMES",
        click.Choice(("told", "ignored")),
        "told",
        "Whether plans tell types of nodes apart, if EVENTS has several: told, or ignored (all nodes count as alike).",
    ),
    "--eta-noise": ("SHARES", _SHARE, "0", "Largest relative error of the remaining work that planners see."),
    "--hang-share": ("SHARES", _SHARE, "0", "Share of trainers that hang within 5 minutes and never end."),
    "--fail-share": ("SHARES", _SHARE, "0", "Share of trainers that fail within 5 minutes."),
    "--cancel-share": ("SHARES", _SHARE, "0", "Share of trainers cancelled at a random time."),
    "--scale-up-delay-s": ("SECONDS", _NUMBER, "0", "Delay of starts and of added nodes."),
    "--seed": ("SEEDS", Count(0), "1", "Seed of random guesses, noise and mishaps."),
    "--on-curve": ("INDICES", Count(0), None, "Use this curve of the curves file for all trainers."),
    "--budget": (
        "NODE-HOURS",
        _POSITIVE,
        None,
        "Node-hours after which the pool drains (see pilot up); with --journal, as charged by the site.",
    ),
}
"""Option → the name of its values, their type, the default, and the help."""

FIELDS = {"--max-parallel-trainers": "max_parallel"}
"""Options whose field of :class:`Case` has another name."""


def sweep_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of :data:`SWEPT`; the help lists them in this order."""
    for flag, (metavar, kind, default, text) in reversed(list(SWEPT.items())):
        names = [flag, FIELDS[flag]] if flag in FIELDS else [flag]
        several = Several(kind)
        function = click.option(*names, type=several, metavar=metavar, default=default, show_default=True, help=text)(
            function
        )
    return function


def all_cases(swept: Mapping[str, Values | None], *, share_curves: bool = False) -> list[Case]:
    """All combinations of the swept values, each once; measuring options matter only if trainers are measured."""
    from pilot.research.sim.knowledge import MEASURED, TRUTH
    from pilot.research.sim.sweep import Case

    know = swept["know"] or ((TRUTH,) if swept["profile"] is None else (MEASURED,))
    unused = [flag for name, flag in MEASURING.items() if swept[name] is not None] + ["--share-curves"] * share_curves
    if MEASURED not in know and unused:
        raise click.UsageError(f"{unused[0]} needs --know measured")
    given = {**swept, "know": know}
    combinations = itertools.product(*(values or (None,) for values in given.values()))
    cases = [Case(**dict(zip(given, values, strict=True))) for values in combinations]
    differing = (_measured(case, share_curves) if case.know == MEASURED else _unmeasured(case) for case in cases)
    return list(dict.fromkeys(differing))


def _measured(case: Case, share_curves: bool) -> Case:
    noise = MEASURE_NOISE if case.measure_noise is None else case.measure_noise
    return replace(case, profile=case.profile or "auto", measure_noise=noise, share_curves=share_curves)


def _unmeasured(case: Case) -> Case:
    return replace(case, profile=None, measure_noise=None)


def swept_names(swept: Mapping[str, Values | None]) -> list[str]:
    """The options whose values differ between the cases."""
    return [name for name, values in swept.items() if values is not None and len(values) > 1] or ["planner"]
