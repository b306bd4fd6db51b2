"""The options of ``pilot replay`` that can be swept: several values separated by commas, one replay for each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from pilot.cli.options import MOST
from pilot.core.pool import NODE_ORDER_NAMES
from pilot.planners import NAMES, SOLVERS

if TYPE_CHECKING:
    from pilot.sim.sweep import Case

MOST_NUMBER = 1e9
"""The largest number of seconds, or factor; beyond it, arithmetic overflows."""

MEASURE_NOISE = 0.03

MEASURING = {"profile": "--profile", "measure_noise": "--measure-noise"}
"""Options that matter only in replays that measure trainers."""

Values = tuple[Any, ...]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def sweep_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options of :data:`SWEPT`; the help lists them in this order."""
    for option in reversed(SWEPT):
        function = option(function)
    return function


def all_cases(swept: Mapping[str, Values | None], *, share_curves: bool = False) -> list[Case]:
    """All combinations of the swept values, each once; measuring options matter only if trainers are measured."""
    from pilot.sim.knowledge import MEASURED, TRUTH
    from pilot.sim.sweep import Case

    know = swept["know"] or ((TRUTH,) if swept["profile"] is None else (MEASURED,))
    unused = [flag for name, flag in MEASURING.items() if swept[name] is not None] + ["--share-curves"] * share_curves
    if MEASURED not in know and unused:
        raise click.UsageError(f"{unused[0]} needs --know measured")
    told = {**swept, "know": know}
    combinations = itertools.product(*(values or (None,) for values in told.values()))
    cases = [Case(**dict(zip(told, values, strict=True))) for values in combinations]
    told_apart = (_measured(case, share_curves) if case.know == MEASURED else _unmeasured(case) for case in cases)
    return list(dict.fromkeys(told_apart))


def _measured(case: Case, share_curves: bool) -> Case:
    noise = MEASURE_NOISE if case.measure_noise is None else case.measure_noise
    return replace(case, profile=case.profile or "auto", measure_noise=noise, share_curves=share_curves)


def _unmeasured(case: Case) -> Case:
    return replace(case, profile=None, measure_noise=None)


def swept_names(swept: Mapping[str, Values | None]) -> list[str]:
    """The options whose values differ between the cases."""
    return [name for name, values in swept.items() if values is not None and len(values) > 1] or ["planner"]


def _number(text: str, least: str = "from 0") -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= MOST_NUMBER:
        raise ValueError(f"give a number {least} to {MOST_NUMBER:,.0f}, or several separated by commas")
    return value


def _positive(text: str) -> float:
    if not (value := _number(text, "greater than 0, up")):
        raise ValueError("give a number greater than 0")
    return value


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError("give a share from 0 to 1, or several separated by commas")
    return value


def _know(text: str) -> str:
    from pilot.sim.knowledge import check

    return check(text)


def _whole(text: str) -> int:
    try:
        value = int(text) if len(text) < 20 else MOST + 1
    except ValueError:
        raise ValueError("give a whole number, or several separated by commas") from None
    if not 0 <= value <= MOST:
        raise ValueError(f"give a whole number from 0 to {MOST:,}")
    return value


def _count(text: str) -> int:
    if not (value := _whole(text)):
        raise ValueError("give at least 1")
    return value


def _choice(*names: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text not in names:
            raise ValueError(f"choose from {', '.join(names)}")
        return text

    return choose


def _sweep(
    flag: str, field: str, kind: Callable[[str], Any], metavar: str, text: str, default: str | None
) -> Decorator:
    """An option that takes several values separated by commas; ``field`` is the field of :class:`Case`."""

    def parse(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Values | None:
        try:
            return None if value is None else tuple(kind(item.strip()) for item in value.split(","))
        except ValueError as error:
            raise click.BadParameter(f"{value!r}: {error}") from None

    return click.option(flag, field, metavar=metavar, help=text, default=default, show_default=True, callback=parse)


SWEPT: Sequence[Decorator] = (
    _sweep(
        "--planner",
        "planner",
        _choice(*NAMES),
        "NAMES",
        f"How nodes are shared out: {', '.join(NAMES)}.",
        default="milp",
    ),
    _sweep("--solver", "solver", _choice(*SOLVERS), "NAMES", "Solver of the MILP: cbc, glpk or highs.", default="cbc"),
    _sweep(
        "--objective",
        "objective",
        str,
        "NAMES",
        "What plans maximise: given (in the curves file), scaling-efficiency, throughput, priority or MODULE:FUNCTION.",
        default="given",
    ),
    _sweep("--t-fwd-s", "t_fwd_s", _positive, "SECONDS", "Forward-looking time (see pilot up).", default="120"),
    _sweep(
        "--max-parallel-trainers",
        "max_parallel",
        _count,
        "COUNTS",
        "Most trainers to run at once (Pj_max).",
        default="10",
    ),
    _sweep("--rescale-scale", "rescale_scale", _number, "FACTORS", "Multiply rescale costs by this.", default="1"),
    _sweep("--solver-latency-s", "solver_latency_s", _number, "SECONDS", "Simulated solver delay.", default="0"),
    _sweep(
        "--node-order",
        "node_order",
        _choice(*NODE_ORDER_NAMES),
        "NAMES",
        "Which free nodes a trainer gets first: hostname, join, or topology (those nearest to its own, see --site).",
        default="hostname",
    ),
    _sweep(
        "--accounting",
        "accounting",
        _choice("paper", "physical"),
        "NAMES",
        "What rescaling costs. paper: its duration at the previous rate; physical: it pauses the trainer, and so does "
        "a start.",
        default="paper",
    ),
    _sweep(
        "--completions",
        "completions",
        _choice("at-once", "at-node-events"),
        "NAMES",
        "When completions and arrivals are planned for: at-once, or at-node-events, the next change of the pool "
        "(as in the authors' replay code).",
        default="at-once",
    ),
    _sweep(
        "--decide-every-s",
        "decide_every_s",
        _positive,
        "SECONDS",
        "Time between plans.  [default: plan at every event]",
        None,
    ),
    _sweep(
        "--know",
        "know",
        _know,
        "NAMES",
        "What planners know of the scaling curves: truth, measured (only what trainers report), guess:linear, "
        "guess:huawei (0.8^log2 n of linear), guess:other (the next curve of the file), guess:N (curve N for all) or "
        "guess:factor:SD (the truth times a random factor at each count).  [default: truth; with --profile measured]",
        default=None,
    ),
    _sweep(
        "--profile",
        "profile",
        _choice("auto", "inverse", "never"),
        "NAMES",
        "How trainers with unknown curves are profiled: auto, inverse or never (see pilot submit).  "
        "[default: with --know measured, auto]",
        default=None,
    ),
    _sweep("--nodes", "nodes", _count, "COUNTS", "Instead of EVENTS: a pool of this many nodes.", None),
    _sweep(
        "--gpus-per-node",
        "gpus_per_node",
        _count,
        "COUNTS",
        "Treat the nodes of the pool as GPUs, this many to a real node; trainers span as few nodes as possible.",
        default=None,
    ),
    _sweep(
        "--measure-noise",
        "measure_noise",
        _share,
        "SHARES",
        f"Relative error of a measured rate (standard deviation).  [default: {MEASURE_NOISE}]",
        default=None,
    ),
    _sweep("--known-ends", "known_ends", _share, "SHARES", "Share of nodes whose end is known in advance.", "0"),
    _sweep(
        "--eta-noise",
        "eta_noise",
        _share,
        "SHARES",
        "Largest relative error of the remaining work that planners see.",
        "0",
    ),
    _sweep(
        "--hang-share",
        "hang_share",
        _share,
        "SHARES",
        "Share of trainers that hang within 5 minutes and never end.",
        default="0",
    ),
    _sweep("--fail-share", "fail_share", _share, "SHARES", "Share of trainers that fail within 5 minutes.", "0"),
    _sweep("--cancel-share", "cancel_share", _share, "SHARES", "Share of trainers cancelled at a random time.", "0"),
    _sweep(
        "--scale-up-delay-s", "scale_up_delay_s", _number, "SECONDS", "Delay of starts and of added nodes.", default="0"
    ),
    _sweep("--seed", "seed", _whole, "SEEDS", "Seed of random guesses, noise and mishaps.", default="1"),
    _sweep(
        "--on-curve", "on_curve", _whole, "INDICES", "Use this curve of the curves file for all trainers.", default=None
    ),
    _sweep(
        "--budget",
        "budget",
        _positive,
        "NODE-HOURS",
        "Node-hours after which the pool drains (see pilot up); with --journal, as charged by the site.",
        default=None,
    ),
)
