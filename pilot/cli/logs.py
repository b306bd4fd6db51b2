"""``pilot logs``: what a trainer's script wrote."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from pilot.cli import candidates
from pilot.cli.asking import ENDED, find_run_dir, is_past, run_dir_option, told_by
from pilot.core.errors import UserError
from pilot.io.files import open_regular
from pilot.io.pool_status import TrainerStatus
from pilot.io.printable import printable

POLL_S = 0.5

TAIL_BLOCK = 1 << 14


@click.command("logs")
@click.argument("trainer", shell_complete=candidates.trainers)
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the trainer has ended.")
@run_dir_option
def command(trainer: str, follow: bool, run_dir: Path | None) -> None:
    """Print what the script of TRAINER wrote, on each node that it ran on.

    \b
    Example:
      pilot logs vit -f
    """
    root = find_run_dir(run_dir, past=True)
    folder = log_folder(root, trainer)
    shown: dict[Path, int] = {}
    while True:
        ended = not follow or is_past(root) or _row(root, trainer).phase in ENDED
        for path in sorted(folder.glob("*.log")):
            shown[path] = echo(path, shown.get(path, 0))
        if ended:
            break
        time.sleep(POLL_S)
    if not shown:
        raise UserError(f"trainer {trainer} has written no log yet; it has had no node (pilot explain {trainer})")


def log_folder(root: Path, trainer: str) -> Path:
    """Where the trainer's logs are; a trainer of a pool that is down is found in the run directory."""
    from pilot.io.rundir import RunDir, is_abandoned

    if Path(trainer).name != trainer:
        raise UserError(f"not a name of a trainer: {trainer!r}; see pilot ls")
    folder, rundir = root / "trainers" / trainer / "logs", RunDir(root)
    if rundir.connection.exists() and not is_abandoned(rundir):
        folder = Path(_row(root, trainer).directory) / "logs"
    if not folder.is_dir():
        raise UserError(f"no logs of a trainer named {trainer!r} in {root}; see pilot ls")
    return folder


def _row(root: Path, trainer: str) -> TrainerStatus:
    row = next((row for row in told_by(root).trainers().trainers if row.trainer == trainer), None)
    if row is None:
        raise UserError(f"no trainer named {trainer!r}; see pilot ls")
    return row


def newest_lines(root: Path, trainer: str, count: int) -> list[str]:
    """The last ``count`` lines of each node's log, the log that was written to last at the end."""
    paths = sorted(log_folder(root, trainer).glob("*.log"), key=lambda path: path.stat().st_mtime)
    return [f"{path.stem}: {printable(line)}" for path in paths for line in _tail(path, count)]


def _tail(path: Path, count: int) -> list[str]:
    """The last ``count`` lines, without reading a log from its beginning."""
    try:
        with open_regular(path) as file:
            end = position = file.seek(0, os.SEEK_END)
            text = b""
            while position and text.count(b"\n") <= count:
                position = max(0, end - 2 * (end - position) - TAIL_BLOCK)
                file.seek(position)
                text = file.read(end - position)
    except OSError as error:
        raise UserError(f"cannot read the log {path}: {error.strerror}") from None
    return text.decode(errors="replace").splitlines()[-count:]


def echo(path: Path, begin: int) -> int:
    """Print ``path`` from byte ``begin`` on, each line with the node's name; where it ends now."""
    try:
        with open_regular(path) as file:
            begin = begin if begin <= file.seek(0, os.SEEK_END) else 0  # it was rotated
            file.seek(begin)
            text = file.read()
    except OSError as error:
        raise UserError(f"cannot read the log {path}: {error.strerror}") from None
    whole = text[: text.rfind(b"\n") + 1] if text else text
    for line in whole.decode(errors="replace").splitlines():
        click.echo(f"{path.stem}: {printable(line) if sys.stdout.isatty() else line}")
    return begin + len(whole)
