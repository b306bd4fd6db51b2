"""The output of a trainer's script: where it is, and how its lines are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pilot.client.merged_logs import LogPiece
from pilot.client.pools import any_pool_at
from pilot.core.errors import UserError
from pilot.protocol.node_names import shortened
from pilot.protocol.pool_status import TrainerStatus
from pilot.rundir import trainer_folder
from pilot.rundir.log_marks import NO_RANK
from pilot.rundir.rundir import RunDir, is_abandoned


@contextmanager
def log_folder(root: Path, trainer: str) -> Iterator[Path]:
    """Hold the folder of the trainer's logs; if the pool is down, the one in the run directory."""
    if Path(trainer).name != trainer:
        raise UserError(f"not a trainer's name: {trainer!r}; see pilot ls")
    folder, rundir = root / "trainers" / trainer / "logs", RunDir(root)
    if rundir.connection.exists() and not is_abandoned(rundir):
        row = row_of(root, trainer)
        folder = Path(row.directory) / "logs" if row is not None else folder
    with ExitStack() as stack:
        try:
            place = stack.enter_context(trainer_folder.held_here(folder))
        except FileNotFoundError:
            raise UserError(f"no logs of a trainer named {trainer!r} in {root}; see pilot ls") from None
        except OSError as error:
            raise UserError(f"cannot read the logs of {trainer}: {error.filename}: {error.strerror}") from None
        yield place


def row_of(root: Path, trainer: str) -> TrainerStatus | None:
    """The trainer's row; None if the pool does not list it, as it ended long ago or never existed."""
    return next((row for row in any_pool_at(root).trainers().trainers if row.trainer == trainer), None)


def whose(piece: LogPiece) -> str:
    """The prefix of each line of a process."""
    return f"{shortened(piece.name)}[{'-' if piece.rank == NO_RANK else piece.rank}]: "


def prefixed(begin: str, text: bytes) -> bytes:
    """The lines of ``text``, each with this beginning."""
    first = begin.encode()
    return first + text.removesuffix(b"\n").replace(b"\n", b"\n" + first) + b"\n"
