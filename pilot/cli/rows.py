"""A table of trainers: one row each, with notes below it; no wider than the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.text import Text

from pilot.cli.asking import ENDED
from pilot.core.proof import ProofState
from pilot.core.trainer import Phase
from pilot.io.pool_status import TrainerStatus

PHASE_STYLE = {
    Phase.RUNNING: "green",
    Phase.FAILED: "bold red",
    Phase.FINISHED: "cyan",
    Phase.PAUSED: "yellow",
    Phase.STARTING: "yellow",
}

COLUMNS = ("trainer", "state", "nodes", "epoch", "step", "samples/s", "elapsed", "left")
LEFT_ALIGNED = 2
"""This many columns, from the left, hold words and are left-aligned; the others hold numbers."""

NAME_WIDTH = 16
"""A longer name gets its own line."""

INDENT = "    "
FIRST_METRICS = ("loss", "learning_rate")

CHECKED = ProofState.RUNNING, ProofState.DIFFERS, ProofState.UNCHECKED
"""What is told of the check of a trainer's script."""

MOST_WITH_NOTES = 50
"""In a longer table, each trainer gets one line, without notes."""


def trainer_rows(trainers: Sequence[TrainerStatus], width: int) -> list[Text]:
    """A table of ``trainers``, each with its metrics and what it is waiting for, ``width`` columns wide."""
    cells = [row_cells(trainer) for trainer in trainers]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *cells, strict=True)]
    widths[0] = min(widths[0], NAME_WIDTH)
    lines = [_row(COLUMNS, widths, "bold")]
    for trainer, row in zip(trainers, cells, strict=True):
        if len(row[0]) > NAME_WIDTH:
            lines.append(Text(row[0]))
            row = ("", *row[1:])
        lines.append(_row(row, widths, state_style=PHASE_STYLE.get(trainer.phase, "")))
        if len(trainers) <= MOST_WITH_NOTES:
            lines += [Text(line, style) for note, style in notes(trainer) for line in folded(note, width, INDENT)]
    if len(trainers) > MOST_WITH_NOTES:
        lines.append(Text("what they wait for and their metrics: pilot top, or --json", "dim"))
    return lines


def folded(text: str, width: int, indent: str = "") -> list[str]:
    """``text`` wrapped to ``width`` columns. A longer word, such as a path, stays whole so that it can be copied."""
    return textwrap.wrap(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _row(cells: Sequence[str], widths: Sequence[int], style: str = "", state_style: str = "") -> Text:
    padded = [
        cell.ljust(width) if number < LEFT_ALIGNED else cell.rjust(width)
        for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    line = Text("  ").join(Text(cell, style) for cell in padded)
    begin = widths[0] + 2
    line.stylize(state_style, begin, begin + widths[1])
    return line


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
        yield ", ".join(f"{name} {_metric(trainer.metrics[name])}" for name in names), "dim"


def _metric(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4g}"


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
