"""``pilot trace``: describe idle-node traces; make them from scheduler logs, by polling, or synthetically."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pilot.cli.options import FILE, Count, FiniteRange, to_json

if TYPE_CHECKING:
    from pilot.core.ids import NodeId
    from pilot.research.traces.jobs import ImportedTrace
    from pilot.research.traces.statistics import TraceStatistics

MOST_HOURS = 100_000
"""More than ten years."""

HANDOVER = click.option(
    "--handover-s",
    type=FiniteRange(min=0),
    default=60.0,
    show_default=True,
    help="Shorter gaps between two jobs do not count as idle time.",
)
NODES_FILE = click.option(
    "--nodes-file",
    type=FILE,
    help="The machine's nodes, one name or Slurm node list per line (default: those in the log).",
)


@click.group("trace")
def command() -> None:
    """Describe and make traces of idle nodes. Format: docs/research/traces.md.

    \b
    Example:
      pilot trace from-sacct week.txt week.csv.gz --nodes-file nodes.txt
      pilot trace stats week.csv.gz
    """


@command.command("stats")
@click.argument("events", type=FILE)
@click.option("--nodes", type=Count(), help="Nodes of the machine (default: those in the trace).")
@click.option(
    "--output",
    type=FILE,
    help="Plot fragment lengths, pool size and preemption probability to this file (PNG, SVG, PDF).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def stats(events: Path, nodes: int | None, output: Path | None, as_json: bool) -> None:
    """Print a trace's statistics.

    The columns of FreeTrain's Table 1, fragment lengths (Fig. 1), pool sizes, preemption probability (Fig. 7a).

    \b
    Example:
      pilot trace stats events.csv.gz --nodes 1024 --output trace.png
    """
    from pilot.research.traces.changes import read_changes
    from pilot.research.traces.statistics import describe
    from pilot.research.traces.trace_plots import plot_trace

    changes = read_changes(events)
    if output is not None:
        plot_trace(output, changes)
        click.echo(f"wrote {output}", err=True)
    _print_statistics({events.name: describe(changes, nodes)}, as_json)


@command.command("synth")
@click.argument("output", type=FILE)
@click.option("--like", type=FILE, help="Resample this trace (circular block bootstrap).")
@click.option("--published", type=click.Choice(["summit", "theta", "mira"]), help="Draw from FreeTrain's Table 1.")
@click.option(
    "--hours", type=FiniteRange(min=0.01, max=MOST_HOURS), default=168.0, show_default=True, help="Length of the trace."
)
@click.option("--nodes", type=Count(), help="Nodes of the machine (default: the source's).")
@click.option(
    "--block-hours", type=FiniteRange(min=0.01), default=12.0, show_default=True, help="With --like: length of a block."
)
@click.option("--seed", type=click.IntRange(min=0), metavar="N", default=1, show_default=True, help="Random seed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def synth(
    output: Path,
    like: Path | None,
    published: str | None,
    hours: float,
    nodes: int | None,
    block_hours: float,
    seed: int,
    as_json: bool,
) -> None:
    """Generate a synthetic trace.

    Writes it to OUTPUT and compares its distributions with those of the source.

    \b
    Examples:
      pilot trace synth lab.csv --like events.csv.gz --nodes 32 --hours 12
      pilot trace synth week.csv.gz --published summit --nodes 1024 --seed 7
    """
    from pilot.core.errors import UserError
    from pilot.research.traces.changes import read_changes, types_of, with_types, write_changes
    from pilot.research.traces.statistics import describe, distance, fragment_lengths
    from pilot.research.traces.synthesis import PUBLISHED, draw, resample

    if (like is None) == (published is None):
        raise click.UsageError("give either --like EVENTS or --published NAME")
    source = read_changes(like) if like is not None else None
    law = PUBLISHED[published].on(nodes or PUBLISHED[published].machine_nodes) if published is not None else None
    if source is not None:
        changes = resample(source, hours * 3600, seed, nodes=nodes, block_s=block_hours * 3600)
    elif law is not None:
        changes = draw(law, hours * 3600, seed)
    if not changes:
        raise UserError("no node is idle in a trace this short; increase --hours or --nodes")
    changes = with_types(changes, types_of(source or ()))
    write_changes(output, changes)
    if source is not None:
        columns = {"source": describe(source), output.name: describe(changes, nodes)}
        _print_statistics(columns, as_json, distance(fragment_lengths(source), fragment_lengths(changes)))
    elif law is not None:
        _print_statistics({output.name: describe(changes, law.machine_nodes)}, as_json)
        if not as_json:
            click.echo(
                f"published: {law.joins_per_h} joins and {law.leaves_per_h} leaves per hour, {law.eq_nodes:.0f} eq"
                f" nodes, {law.short_fragments:.0%} of the fragments below 10 min with {law.short_node_time:.0%} of the"
                " node-time"
            )


@command.command("from-swf")
@click.argument("log", type=FILE)
@click.argument("output", type=FILE)
@HANDOVER
def from_swf(log: Path, output: Path, handover_s: float) -> None:
    """Convert a log in Standard Workload Format (SWF).

    The format has no node names: placement is simulated, first fit.

    \b
    Example:
      pilot trace from-swf SDSC-SP2-1998-4.2-cln.swf.gz sp2.csv.gz
    """
    from pilot.research.traces.swf import import_swf

    _write_imported(import_swf(log, handover_s=handover_s), output)


@command.command("from-sacct")
@click.argument("log", type=FILE)
@click.argument("output", type=FILE)
@NODES_FILE
@HANDOVER
def from_sacct(log: Path, output: Path, nodes_file: Path | None, handover_s: float) -> None:
    """Convert Slurm accounting (sacct).

    \b
    Example:
      TZ=UTC sacct -a -X --parsable2 -S 2026-10-01 -E 2026-10-08 --format=JobID,Start,End,NodeList > week.txt
      sinfo -h -o %N > nodes.txt
      pilot trace from-sacct week.txt week.csv.gz --nodes-file nodes.txt
    """
    from pilot.research.traces.sacct import import_sacct

    _write_imported(import_sacct(log, _machine(nodes_file), handover_s=handover_s), output)


@command.command("from-pbs")
@click.argument("logs", type=FILE, nargs=-1, required=True)
@click.argument("output", type=FILE)
@NODES_FILE
@HANDOVER
@click.option(
    "--preemptable",
    multiple=True,
    metavar="QUEUE",
    help="Nodes used only by this queue's jobs count as idle. Repeatable.",
)
def from_pbs(
    logs: tuple[Path, ...], output: Path, nodes_file: Path | None, handover_s: float, preemptable: tuple[str, ...]
) -> None:
    """Convert PBS accounting files.

    LOGS are the server's accounting files for consecutive days.

    \b
    Example:
      pilot trace from-pbs accounting/202610* october.csv.gz --preemptable preemptable
    """
    from pilot.research.traces.pbs import import_pbs

    imported = import_pbs(logs, _machine(nodes_file), preemptable=preemptable, handover_s=handover_s)
    _write_imported(imported, output)


@command.command("record")
@click.argument("output", type=FILE)
@click.option("--scheduler", type=click.Choice(["slurm", "pbs"]), required=True, help="The scheduler to poll.")
@click.option("--every-s", type=FiniteRange(min=1), default=30.0, show_default=True, help="Time between polls.")
@click.option(
    "--preemptable",
    multiple=True,
    metavar="QUEUE",
    help="Nodes used only by jobs of this partition or queue count as idle. Repeatable.",
)
def record(output: Path, scheduler: str, every_s: float, preemptable: tuple[str, ...]) -> None:
    """Record idle nodes from a live scheduler.

    Polls the scheduler and appends to OUTPUT until Ctrl-C.

    \b
    Example:
      pilot trace record idle.csv --scheduler slurm --preemptable preempt
    """
    import functools
    import signal
    from threading import Event

    from pilot.research.traces.record import query_pbs, query_slurm
    from pilot.research.traces.record import record as record_polls

    stop = Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    query = functools.partial(query_slurm if scheduler == "slurm" else query_pbs, preemptable)
    written = record_polls(output, query, every_s, stop, warn=lambda text: click.echo(text, err=True))
    click.echo(f"{written} changes written to {output}")


def _machine(nodes_file: Path | None) -> list[NodeId] | None:
    from pilot.research.traces.text_files import bad_input, read_lines
    from pilot.site.hostlist import expand

    if nodes_file is None:
        return None
    nodes: list[NodeId] = []
    for line, text in enumerate(read_lines(nodes_file), start=1):
        try:
            nodes += expand(text.strip())
        except ValueError as error:
            raise bad_input(nodes_file, line, str(error)) from None
    return nodes


def _write_imported(imported: ImportedTrace, output: Path) -> None:
    from pilot.research.traces.changes import write_changes

    write_changes(output, imported.changes)
    for note in imported.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(
        f"{len(imported.changes)} changes written to {output}; its second 0 is {imported.origin_s:.0f} in the log"
    )


def _print_statistics(
    columns: dict[str, TraceStatistics], as_json: bool, fragment_distance: float | None = None
) -> None:
    if as_json:
        from pilot.research.traces.statistics import TracesAnswer

        click.echo(to_json(TracesAnswer(traces=columns, fragment_distance=fragment_distance)))
        return
    from pilot.cli.show import print_table

    rows = [dict(_statistics_rows(column)) for column in columns.values()]
    print_table(("", *columns), [(label, *(row[label] for row in rows)) for label in rows[0]])
    if fragment_distance is not None:
        click.echo(f"fragment distance (Kolmogorov-Smirnov): {fragment_distance:.3f}")


def _statistics_rows(s: TraceStatistics) -> list[tuple[str, str]]:
    """Labels and values; the first five are the columns of FreeTrain's Table 1."""
    return [
        ("duration", f"{s.duration_s / 3600:.1f} h"),
        ("INC/h (events with joins)", f"{s.joins_per_h:.1f}"),
        ("DEC/h (events with leaves)", f"{s.leaves_per_h:.1f}"),
        ("ratio", f"{s.idle_ratio:.1%} of {s.machine_nodes} nodes"),
        ("eq nodes", f"{s.eq_nodes:.2f}"),
        ("events/h", f"{s.events_per_h:.1f}"),
        ("node-hours", f"{s.node_hours:.0f}"),
        ("fragments", f"{s.fragments}"),
        ("  below 10 min", f"{s.short_fragments:.1%}, with {s.short_node_time:.1%} of the node-time"),
        *((f"  length, {_quantile(q)}", f"{value:.0f} s") for q, value in s.fragment_s),
        *((f"pool size, {_quantile(q)}", f"{value:.0f}") for q, value in s.pool_nodes),
        *((f"a leave within {t:.0f} s of an event", f"{chance:.1%}") for t, chance in s.preempted_within),
        *((f"a change within {t:.0f} s of an event", f"{chance:.1%}") for t, chance in s.changed_within),
    ]


def _quantile(q: float) -> str:
    return {0.5: "median", 1.0: "maximum"}.get(q, f"{q:.0%} quantile")
