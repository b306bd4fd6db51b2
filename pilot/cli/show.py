"""``pilot status`` as text: the pool, its trainers, what is wrong now; no wider than the terminal."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from pilot.cli.rows import aligned, folded, trainer_rows
from pilot.core.trainer.budget import WARNED_AT, hours, unit
from pilot.core.trainer.trainer import AT_REST
from pilot.history.words import amount, duration, expected_start, node_count
from pilot.host.output_files import write_output
from pilot.host.printable import printable
from pilot.protocol.node_names import shortened
from pilot.protocol.pool_status import KeeperStatus, NodeStatus, PoolStatus, TrainerStatus

ENDED_SHOWN = 5
"""How many ended trainers ``pilot status`` shows: the most recent ones."""

PIPED_WIDTH = 160
"""Output to a file or pipe is not wrapped at 80 columns, unless COLUMNS is set (as by watch)."""


class _Printable(Console):
    """Escapes control characters in what it shows; its own, for colours and progress bars, reach the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """See :class:`rich.console.Console`."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """The console that tables are printed on. Brackets in texts are no markup, and colons no emoji."""
    stream = sys.stderr if stderr else sys.stdout
    return _Printable(
        file=getattr(stream, "as_it_is", stream),
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=soft_wrap,
        width=None if stream.isatty() or "COLUMNS" in os.environ else PIPED_WIDTH,
    )


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print ``rows`` below the names of their columns; on a narrow terminal long cells are cut."""
    screen = console()
    show(screen, aligned([columns, *rows], width=screen.width))


def show(screen: Console, lines: list[Text]) -> None:
    """Print ``lines`` as they are, so that paths can be copied."""
    for line in lines:
        screen.print(line, no_wrap=True, overflow="ignore", crop=False)


def status_lines(status: PoolStatus, width: int) -> list[Text]:
    """The output of ``pilot status``."""
    trainers = of_interest(status.trainers)
    lines = [Text(line, style) for text, style in pool_texts(status) for line in folded(text, width)]
    lines += [Text(), *(trainer_rows(trainers, width) if trainers else [Text("nothing has been submitted yet", "dim")])]
    if left_out := len(status.trainers) - len(trainers):
        lines += [Text(f"and {left_out} that ended earlier (pilot ls --all)")]
    wrong = dict.fromkeys([*status.damage, *status.warnings])
    return lines + [Text(line, "yellow") for text in wrong for line in folded(text, width)]


def of_interest(trainers: list[TrainerStatus]) -> list[TrainerStatus]:
    """Trainers that are neither ended nor shelved, then the last few that are, the last one first."""
    ended = sorted((t for t in trainers if t.phase in AT_REST), key=lambda t: -(t.ended_s or 0.0))
    return [*(t for t in trainers if t.phase not in AT_REST), *ended[:ENDED_SHOWN]]


def pool_texts(status: PoolStatus) -> Iterator[tuple[str, str]]:
    """The pool, its jobs, and what is wrong with it: texts with their styles."""
    if not status.up:
        yield f"pool {status.coordinator} on {status.site} is down; from its journal in {status.run_dir}:", "yellow"
        yield _used(status)
        return
    yield f"pool {status.coordinator} on {status.site}, up {duration(status.now_s)}: {_nodes_words(status)}", ""
    for keeper in status.keepers or [status.keeper]:
        yield _jobs_words(keeper), ""
    yield _used(status)
    if status.draining:
        yield "shutting down: trainers write their checkpoints, then all nodes are released", "yellow"
    if status.trouble:
        yield f"{status.trouble}: no decisions until there is space again; training continues", "bold red"


def _nodes_words(status: PoolStatus) -> str:
    """The number of nodes, in total and by use."""
    counts = {
        "training": sum(len(t.nodes) for t in status.trainers),
        "starting": sum(len(t.warming) for t in status.trainers),
        "idle": sum(n.trainer is None and not n.leaving and not n.set_aside for n in status.pool),
        "leaving": sum(n.leaving for n in status.pool),
        "set aside": sum(n.set_aside for n in status.pool),
    }
    parts = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    kinds = Counter(node.type for node in status.pool)
    types = ", ".join(f"{count} {kind or 'of no type'}" for kind, count in sorted(kinds.items()))
    by_type = f", by type: {types}" if len(kinds) > 1 else ""
    return f"{node_count(len(status.pool))}{f' ({parts})' if parts else ''}{by_type}"


def _jobs_words(keeper: KeeperStatus) -> str:
    """The pool's jobs, what the queued ones are waiting for, and what prevents submitting more."""
    counts = {"running": keeper.running, "queued": keeper.pending, "leaving": keeper.leaving}
    words = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "none"
    parts = [f"{keeper.type and f'{keeper.type} '}jobs: {words}"]
    if keeper.suspended:
        parts.append(f"{keeper.suspended} suspended")
    if keeper.waited_s is not None:
        why = f" ({keeper.waits_for})" if keeper.waits_for else ""
        expected = expected_start(keeper.scheduler, keeper.expected_unix_s)
        parts.append(f"in the queue for {duration(keeper.waited_s)}{why}{expected and f', {expected}'}")
    if keeper.endings:
        parts.append("ended: " + ", ".join(f"{count} {ending}" for ending, count in keeper.endings.items()))
    return "; ".join([*parts, *filter(None, [keeper.held_back, keeper.trouble])])


def _used(status: PoolStatus) -> tuple[str, str]:
    """Node-hours, of the budget if there is one, and the efficiency U in words; with the style of the line."""
    used, style, use = amount(hours(status.node_seconds, status.charge_factor)), "", status.utilisation
    if (budget := status.budget_node_hours) is not None:
        used = f"{amount(status.used_node_hours)} of the budget of {amount(budget)}"
        style = "yellow" if status.used_node_hours >= WARNED_AT * budget else ""
    trained = f"; trained {use.u:.0%} of what {amount(use.eq_nodes)} dedicated nodes would have" if use.u else ""
    return f"used: {used} {unit(status.charge_factor)}{trained}", style


def node_lines(nodes: list[NodeStatus], now_s: float, width: int) -> list[Text]:
    """One line per node: its short name, what it does, and its full name."""
    differ = len({node.type for node in nodes}) > 1
    rows = [("node", *(["type"] if differ else []), "job", "trainer", "here for", "full name")]
    for node in nodes:
        marks = ", ".join(["leaving"] * node.leaving + ["set aside"] * node.set_aside)
        use = f"{node.trainer or '-'} ({marks})" if marks else node.trainer or "-"
        here = duration(now_s - node.joined_s)
        kind = [node.type or "-"] if differ else []
        rows.append((shortened(node.node), *kind, node.job or "-", use, here, node.node))
    return aligned(rows, width=width)


def write_page(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, completely or not at all; :class:`UserError` if that fails."""
    write_output(path, text.encode())
    click.echo(f"wrote {path}")
