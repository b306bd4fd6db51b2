"""Tables of trainers, with notes below their rows, and one trainer's history; no wider than the terminal."""

from __future__ import annotations

import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.text import Text

from pilot.core.pool.evidence import headline
from pilot.core.trainer.budget import unit
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import ENDED, Phase
from pilot.history.words import amount, counted, duration, node_count, round_words
from pilot.protocol.node_names import shortened
from pilot.protocol.pool_status import PoolStatus, TrainerHistory, TrainerStatus
from pilot.submission.seldom import IN_ROUNDS

PHASE_STYLE = {
    Phase.RUNNING: "green",
    Phase.FAILED: "bold red",
    Phase.FINISHED: "cyan",
    Phase.COMPLETE: "cyan",
    Phase.PAUSED: "yellow",
    Phase.STARTING: "yellow",
}

COLUMNS = ("trainer", "state", "nodes", "epochs", "steps", "samples/s", "elapsed", "left")

HISTORY_COLUMNS = ("trainer", "state", "submitted", "elapsed", "node-hours", "samples", "steps")
SPAN_COLUMNS = ("node", "job", "from", "until", "for")

LEAST_WIDTH = 8
"""A column of sentences is not made narrower than this as long as another one is wider."""

INDENT = "    "
FIRST_METRICS = ("loss", "learning_rate")

CHECKED = ProofState.RUNNING, ProofState.DIFFERS, ProofState.UNCHECKED
"""Results of a script's check that are shown."""

MOST_WITH_NOTES = 50
"""In a longer table, each trainer gets one line, without notes."""


def trainer_rows(trainers: Sequence[TrainerStatus], width: int) -> list[Text]:
    """A table of ``trainers``, each with its metrics and what it is waiting for, ``width`` columns wide."""
    shown = notes if len(trainers) <= MOST_WITH_NOTES else lambda _: ()
    lines = rows_with_notes(COLUMNS, 2, trainers, row_cells, shown, width)
    if len(trainers) > MOST_WITH_NOTES:
        lines.append(Text("what they wait for and their metrics: pilot top, or --json", "dim"))
    return lines


def rows_with_notes(
    columns: Sequence[str],
    left: int,
    trainers: Sequence[TrainerStatus],
    cells_of: Callable[[TrainerStatus], Sequence[str]],
    notes_of: Callable[[TrainerStatus], Iterable[tuple[str, str]]],
    width: int,
) -> list[Text]:
    """A row for each trainer, with notes and their styles below it: first its name if the row has it cut. The first
    columns are its name and its state; ``left`` of them are left-aligned.
    """
    head, *lines = aligned([columns, *map(cells_of, trainers)], left, width)
    begin, out = head.plain.index("state"), [head]
    for trainer, line in zip(trainers, lines, strict=True):
        line.stylize(PHASE_STYLE.get(trainer.phase, ""), begin, begin + len(trainer.phase))
        out.append(line)
        out += [] if line.plain.startswith(trainer.trainer) else [Text(f"{INDENT}{trainer.trainer}")]
        out += [Text(text, style) for note, style in notes_of(trainer) for text in folded(note, width, INDENT)]
    return out


def aligned(rows: Sequence[Sequence[str]], left: int | None = None, width: int | None = None) -> list[Text]:
    """``rows`` as lines, the first one bold; the first ``left`` columns (None: all) are left-aligned. Where lines would
    be longer than ``width``, the widest cells are cut, sentences first.
    """
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [any(cell.count(" ") > 2 for cell in column) for column in columns]
    for _ in range(sum(widths) + 2 * (len(widths) - 1) - (width or sys.maxsize)):
        widest = max(range(len(widths)), key=lambda n: (words[n] and widths[n] > LEAST_WIDTH, widths[n]))
        widths[widest] = max(1, widths[widest] - 1)
    lines: list[Text] = []
    for row in rows:
        cells = enumerate((cut(cell, w), w) for cell, w in zip(row, widths, strict=True))
        padded = (cell.ljust(w) if left is None or number < left else cell.rjust(w) for number, (cell, w) in cells)
        lines.append(Text("  ".join(padded).rstrip(), "" if lines else "bold"))
    return lines


def cut(text: str, width: int) -> str:
    """``text`` in at most ``width`` columns: words without their end, a name or a path without its middle."""
    if len(text) <= width:
        return text
    kept = 0 if " " in text else (width - 1) * 2 // 3
    return f"{text[: width - 1 - kept]}…{text[len(text) - kept :]}"


def folded(text: str, width: int, indent: str = "", hanging: str | None = None) -> list[str]:
    """``text`` wrapped to ``width`` columns, with the short names of nodes. A longer word, such as a path, is not
    broken so that it can be copied, nor is a number from its unit. Lines after the first begin with ``hanging``.
    """
    lines = textwrap.wrap(
        _BEFORE_UNIT.sub(_GLUE, shortened(text)),
        width,
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_GLUE, " ") for line in lines]


_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:s|ms|min|h|d|B|[kMGT]i?B)\b)")
_GLUE = "\N{NO-BREAK SPACE}"


def row_cells(trainer: TrainerStatus) -> tuple[str, ...]:
    """A trainer's cells, by column."""
    begun = trainer.started_s is not None
    return (
        trainer.trainer,
        str(trainer.phase),
        str(len(trainer.nodes) or "-"),
        _of(trainer.epoch, trainer.epochs) if begun and counts_epochs(trainer) else "-",
        _of(trainer.step, trainer.steps) if begun else "-",
        _rate(trainer),
        duration(trainer.elapsed_s),
        "-" if trainer.left_s is None else duration(trainer.left_s),
    )


def counts_epochs(trainer: TrainerStatus) -> bool:
    """Whether it seems to have a session; for a torchrun script (``--ddp``), only the steps are known."""
    return bool(trainer.epochs or trainer.steps or trainer.epoch)


def _rate(trainer: TrainerStatus) -> str:
    """Samples per second; for a torchrun script, steps per second (each of its processes counts every step)."""
    if counts_epochs(trainer) or trainer.samples_per_s is None:
        return number(trainer.samples_per_s, ",.0f")
    return f"{trainer.samples_per_s / max(1, len(trainer.nodes)):,.3g} steps"


def _of(done: int, all_of_it: int | None) -> str:
    return f"{done:,}" if all_of_it is None else f"{min(done, all_of_it):,}/{all_of_it:,}"


def notes(trainer: TrainerStatus) -> Iterator[tuple[str, str]]:
    """The notes below the trainer's row, with their styles."""
    if trainer.phase is Phase.FAILED:
        yield headline(trainer.reason), "red"
    if waits := _waits(trainer):
        yield waits, "yellow"
    yield from ((warning, "yellow") for warning in trainer.warnings)
    if mixed := _mixed(trainer):
        yield mixed, "dim"
    if trainer.check in CHECKED and trainer.phase not in ENDED:
        yield trainer.check_text, "yellow"
    metrics = trainer.metrics
    if in_rounds := round_words(metrics):
        yield in_rounds, "dim"
        metrics = {name: value for name, value in metrics.items() if name not in IN_ROUNDS}
    if metrics:
        first = [name for name in FIRST_METRICS if name in metrics]
        values = {name: metrics[name] for name in dict.fromkeys([*first, *metrics])}
        yield ", ".join(f"{n} {'not a number' if v is None else f'{v:.4g}'}" for n, v in values.items()), "dim"


def _mixed(trainer: TrainerStatus) -> str:
    """The types of its nodes, and its shares where these differ."""
    parts = [f"on {', '.join(f'{count} {kind}' for kind, count in trainer.nodes_by_type.items())}"]
    if shares := trainer.shares.values():
        parts.append(f"shares of a step: {min(shares):.3g} to {max(shares):.3g} samples")
    return "; ".join(parts[not trainer.nodes_by_type :])


def _waits(trainer: TrainerStatus) -> str:
    return "; ".join(filter(None, [trainer.prognosis, trainer.waits]))


def number(value: float | None, form: str) -> str:
    """``value`` formatted with ``form``; a dash for None."""
    return "-" if value is None else format(value, form)


def history_lines(status: PoolStatus, width: int) -> list[Text]:
    """A row per trainer with its times and usage, and below it the reason why it ended."""

    def cells(t: TrainerStatus) -> tuple[str, ...]:
        return (
            t.trainer,
            t.phase,
            moment(status.began_unix_s + t.submitted_s),
            duration((t.ended_s if t.ended_s is not None else status.now_s) - t.submitted_s),
            amount(t.used_node_hours),
            f"{t.samples:,}" if counts_epochs(t) else "-",
            f"{t.step:,}",
        )

    def why(t: TrainerStatus) -> list[tuple[str, str]]:
        return [(headline(t.reason) if t.reason else t.held, "dim")]

    out = rows_with_notes(HISTORY_COLUMNS, 3, status.trainers, cells, why, width)
    if status.charge_factor != 1:
        out.append(Text(f"node-hours are {unit(status.charge_factor)}"))
    if sum(t.phase in ENDED for t in status.trainers) >= status.ended_kept:
        out.append(Text(f"ended trainers before the last {status.ended_kept} are not listed; pilot report shows all"))
    return out


def history_view(answer: TrainerHistory, width: int) -> list[Text]:
    """The output of ``pilot status NAME``."""
    lines = [Text(line) for text in _sentences(answer, answer.trainer) for line in folded(text, width)]
    if answer.held_nodes:
        lines += [Text(), *aligned([SPAN_COLUMNS, *_spans(answer)], 4, width)]
    return lines


def _spans(answer: TrainerHistory) -> list[tuple[str, ...]]:
    return [
        (
            shortened(held.node),
            held.job or "-",
            moment(answer.began_unix_s + held.from_s),
            moment(answer.began_unix_s + held.until_s) if held.until_s is not None else "now",
            duration((held.until_s if held.until_s is not None else answer.now_s) - held.from_s),
        )
        for held in answer.held_nodes
    ]


def _sentences(answer: TrainerHistory, t: TrainerStatus) -> list[str]:
    began_s = answer.began_unix_s
    stands = f"{t.trainer} is {t.phase}" if t.phase not in ENDED else f"{t.trainer} {t.phase}"
    reason = (t.reason or t.held).splitlines() or [""]
    lines = [f"{stands}{f': {reason[0]}' if reason[0] else ''}", *(f"  {line}" for line in reason[1:])]
    lines += filter(None, [_waits(t)])
    lines.append(f"submitted {date(began_s + t.submitted_s)}")
    if t.started_s is not None:
        lines[-1] += f", first trained {date(began_s + t.started_s)}"
    if t.ended_s is not None:
        lines[-1] += f", ended {date(began_s + t.ended_s)}"
    samples = f", {counted(t.samples, 'sample')}" if counts_epochs(t) else ""
    number_kept = f"the newest {t.checkpoints_kept}" if t.checkpoints_kept is not None else "the site's default number"
    budget = f" of its budget of {amount(t.budget_node_hours)}" if t.budget_node_hours is not None else ""
    return [
        *lines,
        f"used {amount(t.used_node_hours)}{budget} {unit(answer.charge_factor)}: {counted(t.step, 'step')}{samples}",
        *_changes(t),
        f"files: {t.directory}",
        f"checkpoints kept: {number_kept}",
        *([t.check_text] if t.check in CHECKED else []),
        *t.remarks,
    ]


def _changes(t: TrainerStatus) -> list[str]:
    """What happened to its nodes, and the work that had to be repeated; empty if nothing did."""
    rescales = [f"{n} {way}" for n, way in ((t.rescales_up, "up"), (t.rescales_down, "down")) if n]
    nodes = [f"{node_count(n)} {how}" for n, how in ((t.preemptions, "preempted"), (t.losses, "lost")) if n]
    lost = [f"{counted(t.lost_steps, 'step')} lost"] if t.lost_steps else []
    if t.generation > 1 and t.started_s is not None and not counts_epochs(t):
        lost = ["unsaved work was repeated"]
    parts = [f"rescales: {', '.join(rescales)}"] if rescales else []
    return ["; ".join([*parts, *nodes, *lost])] if parts or nodes or lost else []


def moment(unix_s: float) -> str:
    """The local day and time, for a table."""
    return time.strftime("%b %d %H:%M:%S", time.localtime(unix_s))


def date(unix_s: float) -> str:
    """The local date, with the year, and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
