"""``pilot logs``: the output of a trainer's script."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from pilot.cli.asking import ENDED, any_pool_at, in_any_pool, is_past, patiently
from pilot.cli.merged_logs import LogPiece, MergedLogs, newest, text_of
from pilot.cli.options import Count, moment, trainer_argument
from pilot.core.errors import UserError
from pilot.host.printable import printable, printable_output
from pilot.protocol.pool_status import TrainerStatus
from pilot.rundir import trainer_folder
from pilot.rundir.log_marks import NO_RANK
from pilot.rundir.rundir import RunDir, is_abandoned

POLL_S = 0.5


@click.command("logs")
@trainer_argument
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the trainer has ended.")
@click.option("--all", "every_rank", is_flag=True, help="Output of every rank (default: rank 0).")
@click.option("-n", "--tail", type=Count(0), metavar="N", help="Start with the last N lines.")
@click.option("--since", type=moment, metavar="WHEN", help="Only output since then: 10m, 2h, 14:30, or a date.")
@in_any_pool
def command(trainer: str, follow: bool, every_rank: bool, tail: int | None, since: float | None, root: Path) -> None:
    """Print the output of TRAINER's script in chronological order, each line with its node and [rank].

    By default it prints the output of rank 0, on whichever node it ran, and of processes that never reached training.

    \b
    Examples:
      pilot logs vit -f
      pilot logs vit --all --since 10m
      pilot logs vit --tail 20
    """
    folder = click.get_current_context().with_resource(log_folder(root, trainer))
    logs = MergedLogs(folder, every_rank=every_rank, since_s=since or 0.0, whole_lines=follow)
    pieces = logs.grown()
    shown = ((piece, text_of(piece)) for piece in pieces) if tail is None else newest(pieces, tail)
    printed = _print(shown)
    if not logs.names:
        raise UserError(f"trainer {trainer} has no log yet: it has not had a node (pilot explain {trainer})")
    if not printed and not follow and tail != 0:
        whose, others = (" of rank 0", "; --all shows every rank") if logs.left_out else ("", "")
        click.echo(f"no output{whose} {'so far' if since is None else 'since then'}{others}", err=True)
    while follow and not is_past(root) and (row := patiently(lambda: _row(root, trainer))) and row.phase not in ENDED:
        time.sleep(POLL_S)
        _print((piece, text_of(piece)) for piece in logs.grown())
    if logs.left_out and sys.stderr.isatty():
        click.echo("(rank 0 only; --all shows every rank)", err=True)


@contextmanager
def log_folder(root: Path, trainer: str) -> Iterator[Path]:
    """Hold the folder of the trainer's logs; if the pool is down, the one in the run directory."""
    if Path(trainer).name != trainer:
        raise UserError(f"not a trainer's name: {trainer!r}; see pilot ls")
    folder, rundir = root / "trainers" / trainer / "logs", RunDir(root)
    if rundir.connection.exists() and not is_abandoned(rundir):
        row = _row(root, trainer)
        folder = Path(row.directory) / "logs" if row is not None else folder
    with ExitStack() as stack:
        try:
            place = stack.enter_context(trainer_folder.held_here(folder))
        except FileNotFoundError:
            raise UserError(f"no logs of a trainer named {trainer!r} in {root}; see pilot ls") from None
        except OSError as error:
            raise UserError(f"cannot read the logs of {trainer}: {error.filename}: {error.strerror}") from None
        yield place


def _row(root: Path, trainer: str) -> TrainerStatus | None:
    """The trainer's row; None if the pool does not list it, as it ended long ago or never existed."""
    return next((row for row in any_pool_at(root).trainers().trainers if row.trainer == trainer), None)


def newest_lines(root: Path, trainer: str, count: int) -> list[str]:
    """The last ``count`` lines of the trainer's processes, safe for a terminal."""
    with log_folder(root, trainer) as folder:
        found = newest(MergedLogs(folder, every_rank=True).grown(), count)
    return [f"{_whose(piece)}{printable(line)}" for piece, text in found if text for line in _lines(text)]


def _print(pieces: Iterable[tuple[LogPiece, bytes]]) -> bool:
    """Print ``pieces``; returns whether there was anything to print."""
    out, show = sys.stdout.buffer, _for_screen if sys.stdout.isatty() else _as_it_is
    written = sum(out.write(show(_whose(piece), text)) for piece, text in pieces if text)
    out.flush()
    return written > 0


def _whose(piece: LogPiece) -> str:
    """The prefix of each line of a process."""
    return f"{piece.name}[{'-' if piece.rank == NO_RANK else piece.rank}]: "


def _as_it_is(whose: str, text: bytes) -> bytes:
    begin = whose.encode()
    return begin + text.removesuffix(b"\n").replace(b"\n", b"\n" + begin) + b"\n"


def _for_screen(whose: str, text: bytes) -> bytes:
    """Keep colours and progress bars, and nothing else that a terminal obeys: it might change the title or the
    clipboard, or overwrite other lines.
    """
    shown = (printable_output(line.rstrip("\r")).replace("\r", f"\r{whose}") for line in _lines(text))
    return "".join(f"{whose}{line}\n" for line in shown).encode()


def _lines(text: bytes) -> list[str]:
    return text.decode(errors="replace").removesuffix("\n").split("\n")
