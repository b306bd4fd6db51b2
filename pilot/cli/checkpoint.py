"""``pilot checkpoint``: list, verify, show and export checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot.checkpoint.own_directory import held_here
from pilot.cli.asking import run_dir_option
from pilot.cli.options import answers
from pilot.client.pools import find_run_dir
from pilot.core.errors import CheckpointError, Unreadable, UserError
from pilot.core.ids import TrainerId
from pilot.host.private_folder import shown
from pilot.protocol.pool_status import Answer
from pilot.rundir.rundir import RunDir

if TYPE_CHECKING:
    from pilot.checkpoint.export import Description


class CheckpointRow(Answer, frozen=True):
    """One checkpoint."""

    path: str  #: the path of the file; for a checkpoint in parts, of its index
    problem: str = ""  #: why it cannot be read; empty: it can (only then are the fields below set)
    generation: int = 0  #: the generation of the group that wrote it
    step: int = 0  #: steps done
    bytes: int = 0  #: the total size of its files
    files: tuple[str, ...] = ()  #: the names of its files
    written_s: float | None = None  #: when it was written, in seconds since 1970; null: it cannot be read


class CheckpointList(Answer, frozen=True):
    """What `pilot checkpoint ls --json` prints."""

    checkpoints: list[CheckpointRow]  #: the checkpoints, newest first within each folder


class Verified(Answer, frozen=True):
    """One verified checkpoint."""

    path: str  #: the path of the file
    problems: list[str]  #: what is wrong with it; empty: nothing is
    unreadable: bool = False  #: whether it cannot be read now, so that it may be intact


class VerifiedList(Answer, frozen=True):
    """What `pilot checkpoint verify --json` prints."""

    checkpoints: list[Verified]  #: the checkpoints in the order in which they were read


class Dataset(Answer, frozen=True):
    """One array in a checkpoint."""

    name: str  #: its path in the state, such as `model/0.weight`
    dtype: str  #: its torch or numpy data type
    shape: list[int]  #: its sizes
    bytes: int  #: how many bytes it takes


class CheckpointShown(Answer, frozen=True):
    """What `pilot checkpoint show --json` prints."""

    path: str  #: the path of the file
    generation: int  #: the generation of the group that wrote it
    step: int  #: steps done
    files: tuple[str, ...]  #: the names of its parts
    bytes: int  #: the total size of its files
    written_s: float  #: when it was written, in seconds since 1970
    datasets: list[Dataset]  #: its arrays
    aliases: dict[str, str]  #: additional name of an array → its first name
    #: its numbers, strings and short lists by path; a value that JSON cannot represent is a string
    values: dict[str, Any]


@click.group("checkpoint")
def command() -> None:
    """Inspect checkpoints, given a trainer's name or the path of a file or directory. Format:
    docs/reference/checkpoint-format.md.

    \b
    Example:
      pilot checkpoint verify vit
    """


@command.command("ls")
@click.argument("paths", nargs=-1, required=True)
@run_dir_option
@answers
def ls(paths: tuple[str, ...], run_dir: Path | None) -> tuple[Any, ...]:
    """List the checkpoints of PATHS, newest first. PATHS are trainers, directories or files. Exit status 2 if one
    cannot be read.

    \b
    Examples:
      pilot checkpoint ls digits
      pilot checkpoint ls ~/.local/state/pilot/local/trainers/digits/checkpoints
    """
    rows = [_summary(file) for path in paths for file in _files(path, run_dir)]
    status = UserError.exit_status if any(row.problem for row in rows) else 0
    return CheckpointList(checkpoints=rows), lambda: _list(rows), status


def _list(rows: Sequence[CheckpointRow]) -> None:
    for row in rows:
        click.echo(f"{row.path}  {row.problem or _summary_text(row)}", err=bool(row.problem))


def _summary_text(row: CheckpointRow) -> str:
    written = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.written_s))
    parts = f"  in {len(row.files)} parts" if len(row.files) > 1 else ""
    return f"generation {row.generation}  step {row.step}  {row.bytes:,} B  {written}{parts}"


@command.command("verify")
@click.argument("paths", nargs=-1, required=True)
@run_dir_option
@answers
def verify(paths: tuple[str, ...], run_dir: Path | None) -> tuple[Any, ...]:
    """Read the checkpoints in PATHS from the disk and compare their checksums. Exit status 1 if one is damaged, or
    cannot be read now.

    \b
    Example:
      pilot checkpoint verify g000003-s00001200.h5
    """
    found = [_verified(file) for path in paths for file in _files(path, run_dir)]
    lines = []
    for row in found:
        state = "unreadable" if row.unreadable else "damaged" if row.problems else "ok"
        lines += [f"{row.path}  {state}", *(f"  {problem}" for problem in row.problems)]
    return VerifiedList(checkpoints=found), "\n".join(lines), 1 if any(row.problems for row in found) else 0


def _verified(file: Path) -> Verified:
    from pilot.checkpoint import store

    try:
        return Verified(path=str(shown(file)), problems=store.verify(file))
    except Unreadable as error:
        return Verified(path=str(shown(file)), problems=[str(error)], unreadable=True)


@command.command("show")
@click.argument("path")
@run_dir_option
@answers
def show(path: str, run_dir: Path | None) -> tuple[Any, ...]:
    """Show the contents of a checkpoint: datasets, links, values. PATH is a file, or a directory, of which the newest
    is shown.

    \b
    Example:
      pilot checkpoint show g000003-s00001200.h5
    """
    from pilot.checkpoint.export import describe

    with _refused():
        answer = _full(describe(_files(path, run_dir)[0]))
    return answer, lambda: _show(answer)


def _show(answer: CheckpointShown) -> None:
    click.echo(f"{answer.path}: generation {answer.generation}, step {answer.step}, {answer.bytes:,} bytes")
    _print_columns([(row.name, row.dtype, str(row.shape), f"{row.bytes:,}") for row in answer.datasets])
    _print_columns([(name, "=", first) for name, first in answer.aliases.items()])
    values = {name: repr(value) for name, value in answer.values.items()}
    _print_columns([(name, text if len(text) <= 100 else f"{text[:97]}...") for name, text in values.items()])


@command.command("export")
@click.argument("path")
@run_dir_option
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--only", default="", metavar="PLACE", help="Export only this part, e.g. model.")
@click.option("--dcp", is_flag=True, help="Make OUTPUT a new directory for torch.distributed.checkpoint.load.")
def export(path: str, output: Path, only: str, dcp: bool, run_dir: Path | None) -> None:
    """Export a checkpoint to OUTPUT, a .pt or .safetensors file, or with --dcp a directory. PATH is a file, or a
    directory, of which the newest is exported.

    \b
    Examples:
      pilot checkpoint export g000003-s00001200.h5 digits.pt
      pilot checkpoint export g000003-s00001200.h5 digits.safetensors --only model
      pilot checkpoint export digits exported --dcp
    """
    if dcp:
        from pilot.checkpoint.dcp import export as write
    else:
        from pilot.checkpoint.export import export as write
    with _refused():
        size = write(_files(path, run_dir)[0], output, only)
    click.echo(f"wrote {output} ({size:,} bytes)")


@contextmanager
def _refused() -> Iterator[None]:
    """Treat a given checkpoint that does not verify as bad input."""
    try:
        yield
    except CheckpointError as error:
        raise UserError(str(error)) from None


def _files(given: str, run_dir: Path | None) -> list[Path]:
    """The checkpoints that ``given`` names, at least one."""
    from pilot.checkpoint import store

    path = _place(given, run_dir)
    if not path.is_dir():
        return [path]
    if entries := store.listing(path):
        return [entry.path for entry in entries]
    raise UserError(f"no checkpoint in {shown(path)}; their names are like g000003-s00001200.h5")


def _place(given: str, run_dir: Path | None) -> Path:
    """A checkpoint, a directory of checkpoints, or that of the trainer with this name; an existing path comes first."""
    path = Path(given)
    try:
        if path.exists():
            return path
    except OSError as error:  # the name is too long, say
        raise UserError(f"cannot read {given}: {error.strerror}") from None
    if path.name != given:
        raise UserError(f"no such file: {given}")
    root = find_run_dir(run_dir, past=True)
    folder = RunDir(root).trainer(TrainerId(given)) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"no file {given}, and no trainer of this name in {root}")
    with _refused():
        return click.get_current_context().with_resource(held_here(folder))


def _summary(path: Path) -> CheckpointRow:
    from pilot.checkpoint.export import describe

    try:
        described = describe(path)
    except CheckpointError as error:
        return CheckpointRow(path=str(shown(path)), problem=str(error))
    return CheckpointRow(**_facts(described))


def _facts(described: Description) -> dict[str, Any]:
    """The fields that its row in a list and its description share."""
    return {
        "path": str(shown(described.path)),
        "generation": described.generation,
        "step": described.step,
        "files": tuple(file.name for file in described.files),
        "bytes": described.bytes,
        "written_s": described.written_s,
    }


def _full(described: Description) -> CheckpointShown:
    return CheckpointShown(
        **_facts(described),
        datasets=[Dataset(name=r.name, dtype=r.dtype, shape=list(r.shape), bytes=r.bytes) for r in described.datasets],
        aliases=described.aliases,
        values={name: _plain(value) for name, value in described.values.items()},
    )


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no notation for it
    if isinstance(value, int) and abs(value) >= 2**64:
        return hex(value)  # Python refuses to print the digits of the largest
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return value


def _print_columns(rows: Sequence[tuple[str, ...]]) -> None:
    from pilot.cli.rows import aligned

    for line in aligned(rows):
        click.echo(f"  {line.plain}")
