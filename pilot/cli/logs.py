"""``pilot logs``: the output of a trainer's script."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path

import click

from pilot.cli.asking import in_any_pool
from pilot.cli.options import Count, moment, trainer_argument
from pilot.client.merged_logs import LogPiece, MergedLogs, newest, text_of
from pilot.client.output import log_folder, prefixed, row_of, whose
from pilot.client.pools import is_past, patiently
from pilot.core.errors import UserError
from pilot.core.trainer.trainer import ENDED
from pilot.host.printable import printable, printable_output

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
        of_rank, others = (" of rank 0", "; --all shows every rank") if logs.left_out else ("", "")
        click.echo(f"no output{of_rank} {'so far' if since is None else 'since then'}{others}", err=True)
    while follow and not is_past(root) and (row := patiently(lambda: row_of(root, trainer))) and row.phase not in ENDED:
        time.sleep(POLL_S)
        _print((piece, text_of(piece)) for piece in logs.grown())
    if logs.left_out and sys.stderr.isatty():
        click.echo("(rank 0 only; --all shows every rank)", err=True)


def newest_lines(root: Path, trainer: str, count: int) -> list[str]:
    """The last ``count`` lines of the trainer's processes, safe for a terminal."""
    with log_folder(root, trainer) as folder:
        found = newest(MergedLogs(folder, every_rank=True).grown(), count)
    return [f"{whose(piece)}{printable(line)}" for piece, text in found if text for line in _lines(text)]


def _print(pieces: Iterable[tuple[LogPiece, bytes]]) -> bool:
    """Print ``pieces``; returns whether there was anything to print."""
    out, show = sys.stdout.buffer, _for_screen if sys.stdout.isatty() else prefixed
    written = sum(out.write(show(whose(piece), text)) for piece, text in pieces if text)
    out.flush()
    return written > 0


def _for_screen(begin: str, text: bytes) -> bytes:
    """Keep colours and progress bars, and nothing else that a terminal obeys: it might change the title or the
    clipboard, or overwrite other lines.
    """
    shown = (printable_output(line.rstrip("\r")).replace("\r", f"\r{begin}") for line in _lines(text))
    return "".join(f"{begin}{line}\n" for line in shown).encode()


def _lines(text: bytes) -> list[str]:
    return text.decode(errors="replace").removesuffix("\n").split("\n")
