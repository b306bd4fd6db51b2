"""Tables of trainers, with notes below their rows, and one trainer's history; no wider than the terminal."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.text import Text

from pilot.client.pools import ENDED
from pilot.core.pool.evidence import headline
from pilot.core.trainer.budget import unit
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import Phase
from pilot.history.words import amount, counted
from pilot.protocol.pool_status import PoolStatus, TrainerHistory, TrainerStatus

PHASE_STYLE = {
    Phase.RUNNING: "green",
    Phase.FAILED: "bold red",
    Phase.FINISHED: "cyan",
    Phase.PAUSED: "yellow",
    Phase.STARTING: "yellow",
}

COLUMNS = ("trainer", "state", "nodes", "epoch", "step", "samples/s", "elapsed", "left")

HISTORY_COLUMNS = ("trainer", "state", "submitted", "elapsed", "node-hours", "samples", "steps")
SPAN_COLUMNS = ("node", "job", "from", "until", "for")

NAME_WIDTH = 16
"""A longer name gets its own line."""

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
    """A row for each trainer, with notes and their styles below it. The first columns are its name and its state;
    ``left`` of them are left-aligned.
    """
    named = [cells_of(trainer) for trainer in trainers]
    rows = [("" if len(name) > NAME_WIDTH else name, *cells) for name, *cells in named]
    head, *lines = aligned([columns, *rows], left)
    begin, out = head.plain.index("state"), [head]
    for trainer, line in zip(trainers, lines, strict=True):
        out += [Text(trainer.trainer)] if len(trainer.trainer) > NAME_WIDTH else []
        line.stylize(PHASE_STYLE.get(trainer.phase, ""), begin, begin + len(trainer.phase))
        out.append(line)
        out += [Text(text, style) for note, style in notes_of(trainer) for text in folded(note, width, INDENT)]
    return out


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[Text]:
    """``rows`` as lines, the first one bold; the first ``left`` columns (None: all) are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[Text] = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        padded = (cell.ljust(w) if left is None or number < left else cell.rjust(w) for number, (cell, w) in cells)
        lines.append(Text("  ".join(padded).rstrip(), "" if lines else "bold"))
    return lines


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """``text`` wrapped to ``width`` columns. A longer word, such as a path, is not broken, so that it can be copied."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def row_cells(trainer: TrainerStatus) -> tuple[str, ...]:
    """A trainer's cells, by column."""
    begun, ended = trainer.started_s is not None, trainer.phase in ENDED
    return (
        trainer.trainer,
        str(trainer.phase),
        "-" if ended else f"{len(trainer.nodes)}/{trainer.max_nodes}",
        _of(trainer.epoch if ended else trainer.epoch + 1, trainer.epochs) if begun and counts_epochs(trainer) else "-",
        _of(trainer.step, trainer.steps) if begun else "-",
        _rate(trainer),
        short(trainer.elapsed_s),
        "-" if trainer.left_s is None else short(trainer.left_s),
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
    return str(done) if all_of_it is None else f"{min(done, all_of_it)}/{all_of_it}"


def notes(trainer: TrainerStatus) -> Iterator[tuple[str, str]]:
    """The notes below the trainer's row, with their styles."""
    if trainer.waits:
        yield trainer.waits, "yellow"
    if trainer.check in CHECKED and trainer.phase not in ENDED:
        yield trainer.check_text, "yellow"
    if trainer.metrics:
        first = [name for name in FIRST_METRICS if name in trainer.metrics]
        names = dict.fromkeys([*first, *trainer.metrics])
        values = {name: trainer.metrics[name] for name in names}
        yield ", ".join(f"{n} {'not a number' if v is None else f'{v:.4g}'}" for n, v in values.items()), "dim"


def number(value: float | None, form: str) -> str:
    """``value`` formatted with ``form``; a dash for None."""
    return "-" if value is None else format(value, form)


def short(seconds: float) -> str:
    """A duration in at most six characters, in its two largest units: ``45s``, ``12m30s``, ``3h05m``, ``2d04h``."""
    whole = round(seconds)
    days, hours, minutes = whole // 86400, whole // 3600, whole // 60
    if days:
        return f"{days}d{hours % 24:02}h"
    if hours:
        return f"{hours}h{minutes % 60:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def history_lines(status: PoolStatus, width: int) -> list[Text]:
    """A row per trainer with its times and usage, and below it the reason why it ended."""

    def cells(t: TrainerStatus) -> tuple[str, ...]:
        return (
            t.trainer,
            t.phase,
            moment(status.began_unix_s + t.submitted_s),
            short((t.ended_s if t.ended_s is not None else status.now_s) - t.submitted_s),
            f"{t.used_node_hours:.2f}",
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
        lines += [Text(), *aligned([SPAN_COLUMNS, *_spans(answer)], left=4)]
    return lines


def _spans(answer: TrainerHistory) -> list[tuple[str, ...]]:
    return [
        (
            held.node,
            held.job or "-",
            moment(answer.began_unix_s + held.from_s),
            moment(answer.began_unix_s + held.until_s) if held.until_s is not None else "now",
            short((held.until_s if held.until_s is not None else answer.now_s) - held.from_s),
        )
        for held in answer.held_nodes
    ]


def _sentences(answer: TrainerHistory, t: TrainerStatus) -> list[str]:
    began_s = answer.began_unix_s
    stands = f"{t.trainer} is {t.phase}" if t.phase not in ENDED else f"{t.trainer} {t.phase}"
    reason = (t.reason or t.held).splitlines() or [""]
    lines = [f"{stands}{f': {reason[0]}' if reason[0] else ''}", *(f"  {line}" for line in reason[1:])]
    lines.append(f"submitted {date(began_s + t.submitted_s)}")
    if t.started_s is not None:
        lines[-1] += f", first trained {date(began_s + t.started_s)}"
    if t.ended_s is not None:
        lines[-1] += f", ended {date(began_s + t.ended_s)}"
    nodes = f"nodes: {t.preemptions} preempted, {t.losses} lost{_lost(t)}"
    samples = f", {counted(t.samples, 'sample')}" if counts_epochs(t) else ""
    number_kept = f"the newest {t.checkpoints_kept}" if t.checkpoints_kept is not None else "the site's default number"
    budget = f" of its budget of {t.budget_node_hours:g}" if t.budget_node_hours is not None else ""
    return [
        *lines,
        f"used {amount(t.used_node_hours)}{budget} {unit(answer.charge_factor)}: {counted(t.step, 'step')}{samples}",
        f"rescales: {t.rescales_up} up, {t.rescales_down} down; {nodes}",
        f"files: {t.directory}",
        f"checkpoints kept: {number_kept}",
        *([t.check_text] if t.check in CHECKED else []),
        *t.remarks,
    ]


def _lost(t: TrainerStatus) -> str:
    """The work that had to be repeated; empty for a trainer that never trained."""
    if t.started_s is None:
        return ""
    return f"; {counted(t.lost_steps, 'step')} lost" if counts_epochs(t) else "; unsaved work was repeated"


def moment(unix_s: float) -> str:
    """The local day and time, for a table."""
    return time.strftime("%b %d %H:%M:%S", time.localtime(unix_s))


def date(unix_s: float) -> str:
    """The local date, with the year, and time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s))
