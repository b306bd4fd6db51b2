"""``pilot logs``: the output of a trainer's script."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import ENDED, find_run_dir, is_past, patiently, run_dir_option, told_by
from pilot.cli.merged_logs import MergedLogs, Piece, newest, text_of
from pilot.cli.numbers import Count, moment
from pilot.core.errors import UserError
from pilot.io.log_marks import NO_RANK
from pilot.io.pool_status import TrainerStatus
from pilot.io.printable import printable

POLL_S = 0.5


@click.command("logs")
@click.argument("trainer", shell_complete=candidates.trainers)
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the trainer has ended.")
@click.option("--all", "every_rank", is_flag=True, help="Output of every rank (default: rank 0).")
@click.option("-n", "--tail", type=Count(0), metavar="N", help="Start with the last N lines.")
@click.option("--since", type=moment, metavar="WHEN", help="Only output since then: 10m, 2h, 14:30, or a date.")
@run_dir_option
def command(
    trainer: str, follow: bool, every_rank: bool, tail: int | None, since: float | None, run_dir: Path | None
) -> None:
    """Print the output of TRAINER's script in chronological order, each line with its node and [rank].

    By default it prints the output of rank 0, on whichever node it ran, and of processes that never reached training.

    \b
    Examples:
      pilot logs vit -f
      pilot logs vit --all --since 10m
      pilot logs vit --tail 20
    """
    root = find_run_dir(run_dir, past=True)
    logs = MergedLogs(log_folder(root, trainer), every_rank=every_rank, since_s=since or 0.0, whole_lines=follow)
    pieces = logs.grown()
    shown = ((piece, text_of(piece)) for piece in pieces) if tail is None else newest(pieces, tail)
    printed = _print(shown)
    if not logs.names:
        raise UserError(f"trainer {trainer} has no log yet: it has not had a node (pilot explain {trainer})")
    if not printed and not follow and tail != 0:
        click.echo("no output so far" if since is None else "no output since then", err=True)
    while follow and not is_past(root) and patiently(lambda: _trains(root, trainer)):
        time.sleep(POLL_S)
        _print((piece, text_of(piece)) for piece in logs.grown())
    if logs.left_out and sys.stderr.isatty():
        click.echo("(rank 0 only; --all shows every rank)", err=True)


def _trains(root: Path, trainer: str) -> bool:
    row = _row(root, trainer)
    return row is not None and row.phase not in ENDED


def log_folder(root: Path, trainer: str) -> Path:
    """The folder of the trainer's logs; if the pool is down, the one in the run directory."""
    from pilot.io.rundir import RunDir, is_abandoned

    if Path(trainer).name != trainer:
        raise UserError(f"not a trainer's name: {trainer!r}; see pilot ls")
    folder, rundir = root / "trainers" / trainer / "logs", RunDir(root)
    if rundir.connection.exists() and not is_abandoned(rundir):
        row = _row(root, trainer)
        folder = Path(row.directory) / "logs" if row is not None else folder
    if not folder.is_dir():
        raise UserError(f"no logs of a trainer named {trainer!r} in {root}; see pilot ls")
    return folder


def _row(root: Path, trainer: str) -> TrainerStatus | None:
    """The trainer's row; None if the pool does not list it, as it ended long ago or never existed."""
    return next((row for row in told_by(root).trainers().trainers if row.trainer == trainer), None)


def newest_lines(root: Path, trainer: str, count: int) -> list[str]:
    """The last ``count`` lines of the trainer's processes, safe for a terminal."""
    pieces = MergedLogs(log_folder(root, trainer), every_rank=True).grown()
    told = (_prefixed(piece, text, for_screen=True) for piece, text in newest(pieces, count))
    return [line for text in told for line in text.decode(errors="replace").splitlines()]


def _print(pieces: Iterable[tuple[Piece, bytes]]) -> bool:
    """Print ``pieces``; returns whether there was anything to print."""
    out, for_screen = sys.stdout.buffer, sys.stdout.isatty()
    written = sum(out.write(_prefixed(piece, text, for_screen=for_screen)) for piece, text in pieces)
    out.flush()
    return written > 0


def _prefixed(piece: Piece, text: bytes, *, for_screen: bool) -> bytes:
    """``text`` with its process's name before each line; ``for_screen`` escapes control characters."""
    if not text:
        return b""
    if for_screen:
        text = printable(text.decode(errors="replace")).encode()
    whose = f"{piece.name}[{'-' if piece.rank == NO_RANK else piece.rank}]: ".encode()
    return whose + text.removesuffix(b"\n").replace(b"\n", b"\n" + whose) + b"\n"
