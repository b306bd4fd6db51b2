"""The results of ``benchmarks.huawei``'s replays as Markdown tables for docs/research/huawei.md.

    python -m benchmarks.huawei_tables huawei.jsonl

*Additional jobs*: how many more ``rolling-horizon`` had completed when ``greedy`` had completed 100 (Fig 11).
*In total time*: 100 x (mean total time of greedy / that of rolling-horizon - 1), with decimals as in the paper.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click

from benchmarks.huawei_jobs import JOBS, SHORT_JOBS

DONE = 100
SHORT_SHARE = SHORT_JOBS / (SHORT_JOBS + JOBS)
ROLLING, GREEDY = "rolling-horizon", "greedy"


@dataclass(frozen=True, slots=True)
class Found:
    """The replays by (scenario, policy, set, nodes, n_max)."""

    by_key: dict[tuple[str, str, int, int, int], dict[str, object]]

    def of(self, scenario: str, policy: str, number: int, nodes: int, most: int = 16) -> Outcome | None:
        """The result of one replay; None if there is none."""
        told = self.by_key.get((scenario, policy, number, nodes, most))
        return None if told is None else Outcome(told["waiting"], told["total"], told["completed"])  # type: ignore[arg-type]  # as written

    def both(self, scenario: str, nodes: int, other: str = ROLLING, most: int = 16) -> list[tuple[Outcome, Outcome]]:
        """``greedy`` and ``other`` on each set on which both were replayed."""
        sets = range(1 + max(number for _, _, number, _, _ in self.by_key))
        pairs = [(self.of(scenario, GREEDY, n, nodes, most), self.of(scenario, other, n, nodes, most)) for n in sets]
        return [(greedy, rolling) for greedy, rolling in pairs if greedy is not None and rolling is not None]

    @property
    def nodes(self) -> list[int]:
        """All pool sizes."""
        return sorted({nodes for _, _, _, nodes, _ in self.by_key})


@dataclass(frozen=True, slots=True)
class Outcome:
    """Mean minutes, and when jobs were completed."""

    waiting: float
    total: float
    completed: Sequence[float]


Pair = tuple[Outcome, Outcome]


def additional(pair: Pair) -> float:
    """How many more jobs the second had completed when the first had completed 100."""
    greedy, other = pair
    return bisect_right(other.completed, greedy.completed[DONE - 1]) - DONE


def in_total(pair: Pair) -> float:
    """By how many percent the first's mean total time is longer."""
    greedy, other = pair
    return 100 * (greedy.total / other.total - 1)


def less_waiting(pair: Pair) -> float:
    """By how many percent the second's waiting time is shorter."""
    greedy, other = pair
    return 100 * (1 - other.waiting / greedy.waiting) if greedy.waiting else 0.0


def over_sets(pairs: Sequence[Pair], what: Callable[[Pair], float]) -> str:
    """Of the first set; in brackets the median and the range over all sets."""
    values = [what(pair) for pair in pairs]
    first = f"{values[0]:.1f}"
    return f"{first} ({median(values):.1f}; {min(values):.1f} to {max(values):.1f})" if len(values) > 1 else first


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)) + "\n"


def figures(found: Found) -> str:
    """Figs 9 to 11."""
    head = ["nodes", "waiting, min", "less waiting, %", "total, min", "additional jobs", "in total time"]
    rows = []
    for nodes in found.nodes:
        if pairs := found.both("baseline", nodes):
            (greedy, rolling), *_ = pairs
            means = (f"{greedy.waiting:.1f} / {rolling.waiting:.1f}", f"{greedy.total:.1f} / {rolling.total:.1f}")
            told = [over_sets(pairs, what) for what in (less_waiting, additional, in_total)]
            rows.append([str(nodes), means[0], told[0], means[1], *told[1:]])
    return table(head, rows)


def robustness(found: Found, what: Callable[[Pair], float]) -> str:
    """Figs 12 to 15."""
    scenarios = list(dict.fromkeys(scenario for scenario, *_ in found.by_key))
    rows = [
        [str(nodes), *(over_sets(pairs, what) if (pairs := found.both(s, nodes)) else "-" for s in scenarios)]
        for nodes in found.nodes
    ]
    return table(["nodes", *scenarios], rows)


def by_length(found: Found) -> str:
    """Fig 12, greedy / dp: total minutes of long and short jobs on each set, and the reduction; the last column weighs
    all jobs equally."""
    rows = []
    for key in [key for key in found.by_key if key[:2] == ("short", "dp")]:
        one, other = found.by_key["short", GREEDY, *key[2:]], found.by_key[key]
        gains = {of: 100 * (one[of] / other[of] - 1) for of in ("long", "short", "total")}  # type: ignore[operator]  # as written
        shares = {"long": 1 - SHORT_SHARE, "short": SHORT_SHARE}
        told = [f"{one[of]:.2f} / {other[of]:.2f}, {gains[of]:.1f}%" for of in gains]
        rows.append([f"{key[2]}", f"{key[3]}", *told, f"{sum(gains[of] * share for of, share in shares.items()):.1f}%"])
    return table(["set", "nodes", "long", "short", "all", "each job"], rows)


def policies(found: Found) -> str:
    """Mean waiting / total minutes of all policies on the first set, and on how many sets each is the shortest."""
    names = list(dict.fromkeys(policy for _, policy, _, _, _ in found.by_key))
    rows = []
    for nodes in found.nodes:
        outcomes = [found.of("baseline", name, 0, nodes) for name in names]
        rows.append([str(nodes), *("-" if o is None else f"{o.waiting:.1f} / {o.total:.1f}" for o in outcomes)])
    return table(["nodes", *names], rows)


def against(found: Found, what: Callable[[Pair], float]) -> str:
    """All policies against greedy, over all sets."""
    names = [name for name in dict.fromkeys(policy for _, policy, _, _, _ in found.by_key) if name != GREEDY]
    rows = [
        [str(nodes), *(over_sets(p, what) if (p := found.both("baseline", nodes, name)) else "-" for name in names)]
        for nodes in found.nodes
    ]
    return table(["nodes", *names], rows)


def sweep(found: Found, other: str) -> str:
    """n_max: how much shorter ``other``'s mean total time is than greedy's."""
    most = sorted({most for *_, most in found.by_key})
    rows = [[str(nodes), *(_first(found.both("baseline", nodes, other, m)) for m in most)] for nodes in found.nodes]
    return table(["nodes", *map(str, most)], rows)


def _first(pairs: Sequence[Pair]) -> str:
    return f"{in_total(pairs[0]):.1f}" if pairs else "-"


@click.command(help=__doc__)
@click.argument("lines", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(lines: Path) -> None:
    told = [json.loads(line) for line in lines.read_text().splitlines()]
    keys = ("scenario", "policy", "number", "nodes", "most")
    by_key = {tuple(one["key"][name] for name in keys): one for one in told}
    found = Found(by_key)
    click.echo("Figs 9-11, greedy / rolling-horizon: the file's jobs (all sets: median; least to most)\n")
    click.echo(figures(found))
    click.echo("Additional jobs, Figs 11-15\n\n" + robustness(found, additional))
    click.echo("In total time\n\n" + robustness(found, in_total))
    click.echo("Fig 12, short jobs apart: total min, greedy / dp\n\n" + by_length(found))
    click.echo("Waiting / total of each policy, the file's jobs, min\n\n" + policies(found))
    click.echo("Total time against greedy, %\n\n" + against(found, in_total))
    click.echo("Waiting less than greedy, %\n\n" + against(found, less_waiting))
    for other in (ROLLING, "dp"):
        click.echo(f"n_max, {other}, in total time\n\n" + sweep(found, other))


if __name__ == "__main__":
    main()
