"""A trainer's checkpoints: one HDF5 file each, published atomically; the newest intact one is loaded.

See ``docs/reference/checkpoint-format.md`` for the layout. One trainer writes to a directory, any number of processes
may read. A trainer over several ranks may write in parallel: each rank ``write_part``, then its leader ``write_index``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pilot.checkpoint import names, publish, rawio, reader
from pilot.checkpoint.names import Age, FileEntry
from pilot.checkpoint.openfile import Damaged, open_file
from pilot.checkpoint.own_directory import held
from pilot.checkpoint.rawio import uncollected
from pilot.checkpoint.reader import Wanted, everything
from pilot.checkpoint.retention import Retention, was_read
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError, Unreadable
from pilot.host.private_folder import shown


@dataclass(frozen=True, slots=True)
class Written:
    """A published checkpoint, or a part, which only its index makes one."""

    path: Path
    bytes: int
    seconds: float


OnPublish = Callable[[Written], None]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A fully verified state, and the newer files that were skipped, each with the reason."""

    state: dict[str, Any]
    path: Path
    generation: int
    step: int
    skipped: list[tuple[Path, str]]


def write(
    directory: Path,
    generation: int,
    step: int,
    state: Mapping[str, Any] | Encoded,
    kept: int,
    agreed_step: int | None = None,
    uid: str = "",
    on_publish: OnPublish = lambda _written: None,
    given_up: int = 0,
) -> Written:
    """Publish ``state`` as one file; then keep the last ``kept`` checkpoints and remove the files of dead writers.

    Parameters
    ----------
    state : an argument or a result of :func:`pilot.checkpoint.tree.encode`
    kept : how many checkpoints to keep, at least 1
    agreed_step : the newest one up to this step is kept as well (None: not needed)
    uid : of the trainer; "" if the folder belongs to none
    on_publish : called before older checkpoints are removed, for which the new one may have to be read back
    given_up : older ones of generations up to this one neither count nor are removed

    Raises
    ------
    CheckpointError : a value cannot be stored, the folder is another trainer's, or writing fails; existing files are
        untouched
    """
    age, keep = Age(generation, step), Retention(kept, agreed_step, given_up)
    write = partial(publish.state, age=age, state=state, uid=uid)
    name, tidy = names.checkpoint_name(*age), partial(keep.tidy, newest=age)
    return _publish(directory, name, uid, write, on_publish, tidy)


def write_part(
    directory: Path,
    generation: int,
    step: int,
    part: int,
    parts: int,
    state: Mapping[str, Any] | Encoded,
    shared: Callable[[str], bool] = lambda _path: True,
    uid: str = "",
) -> Written:
    """Publish share ``part`` of ``parts`` of ``state``.

    Of a sharded tensor, all rows in ``state`` are written: see :func:`pilot.checkpoint.publish.own_rows`.

    Arrays whose path ``shared`` accepts are the same on all ranks: each part has a checksum of all of them, and the
    shares have equal sizes in bytes, up to one row. Values of a single rank (buffers, random states, scalars) are taken
    from part 0.

    Raises
    ------
    CheckpointError : a value cannot be stored, or writing fails
    """
    age = Age(generation, step)
    write = partial(publish.part, age=age, part=part, parts=parts, state=state, shared=shared, uid=uid)
    return _publish(directory, names.part_name(*age, part, parts), uid, write)


def _publish(
    directory: Path,
    name: str,
    uid: str,
    write: Callable[[Path], int],
    on_publish: OnPublish = lambda _written: None,
    tidy: Callable[[Path], None] = lambda _place: None,
) -> Written:
    """Hold ``directory`` while ``write`` publishes the file ``name`` there, and ``tidy`` removes obsolete ones."""
    started_s = time.monotonic()
    with held(directory, uid, make=True) as place:
        with uncollected():
            size = write(place)
        written = Written(directory / name, size, time.monotonic() - started_s)
        on_publish(written)
        tidy(place)
    return written


def write_index(
    directory: Path,
    generation: int,
    step: int,
    parts: int,
    kept: int,
    agreed_step: int | None = None,
    uid: str = "",
    on_publish: OnPublish = lambda _written: None,
    given_up: int = 0,
) -> Written:
    """Combine ``parts`` published parts into a checkpoint; then clean up like :func:`write`.

    Raises
    ------
    CheckpointError : a part is missing or belongs to another state or trainer, or writing fails
    """
    age, keep = Age(generation, step), Retention(kept, agreed_step, given_up)
    write = partial(publish.index, age=age, parts=parts, uid=uid)
    name, tidy = names.checkpoint_name(*age), partial(keep.tidy, newest=age)
    return _publish(directory, name, uid, write, on_publish, tidy)


def write_next_step(directory: Path, generation: int, step: int, block: bytes, uid: str = "") -> None:
    """Publish ``block``, about the step after a checkpoint, beside it. The file is removed with the checkpoint.

    Raises
    ------
    CheckpointError : the folder is another trainer's, or writing fails
    """
    with (
        held(directory, uid, make=True) as place,
        rawio.published(place / names.next_name(generation, step), step) as fd,
    ):
        rawio.write(fd, [memoryview(block)])


def next_step_of(path: Path, uid: str = "") -> bytes:
    """Return the block beside the checkpoint of trainer ``uid`` at ``path``; b"": there is none. :class:`Unreadable` if
    that cannot be known now."""
    age = names.age_of(path.name)
    if age is None:
        return b""
    try:
        with held(path.parent, uid) as place, open_file(place / names.next_name(*age)) as file:
            return file.read()
    except Damaged:
        return b""
    except OSError as error:
        raise Unreadable(f"{path.name}, of the step after it: {error.strerror}") from None


def set_aside(directory: Path, step: int, uid: str = "", given_up: int = 0) -> Path | None:
    """Rename the checkpoints of steps after ``step``, so that nobody resumes from them; returns the newest left. Those
    of generations up to ``given_up`` are the user's."""
    with held(directory, uid, make=True) as place:
        entries = [entry for entry in names.checkpoints(place) if entry.age.generation > given_up]
        for entry in entries:
            if entry.age.step > step:
                with suppress(FileNotFoundError):  # another rank did it
                    entry.path.rename(entry.path.with_name(names.doubtful_name(entry.path.name)))
        return next((shown(entry.path) for entry in entries if entry.age.step <= step), None)


def remove_part(part: Path, uid: str = "") -> None:
    """Remove a published part of trainer ``uid``, if it is still there."""
    with suppress(CheckpointError, OSError), held(part.parent, uid) as place:
        (place / part.name).unlink(missing_ok=True)


def load_newest(
    directory: Path,
    granted: int,
    on_skip: Callable[[Path, str], None] = lambda _path, _reason: None,
    uid: str = "",
    wanted: Wanted = everything,
    given_up: int = 0,
) -> Loaded | None:
    """The newest intact checkpoint of trainer ``uid`` with a generation up to ``granted``; None if there is no
    checkpoint at all. Those of generations up to ``given_up`` count as not there. ``on_skip`` is called for each file
    that is skipped; ``Loaded.skipped`` lists them, too. ``wanted``: see :func:`pilot.checkpoint.reader.load`.

    Raises
    ------
    CheckpointError : there are checkpoints, and none is intact; or the folder is another trainer's or not ours alone
    Unreadable : the folder or the newest of them cannot be read now: an older one is not loaded instead
    """
    try:
        with held(directory, uid) as place:
            return _newest(place, granted, on_skip, uid, wanted, given_up)
    except FileNotFoundError as error:
        if given_up:
            return None
        raise Unreadable(f"cannot read the folder {directory}: {error.strerror}") from None


def _newest(
    directory: Path, granted: int, on_skip: Callable[[Path, str], None], uid: str, wanted: Wanted, given_up: int
) -> Loaded | None:
    skipped: dict[Path, str] = {}

    def skip(path: Path, reason: str) -> None:
        path = shown(path)
        if path not in skipped:
            skipped[path] = reason
            on_skip(path, reason)

    def found() -> list[FileEntry]:
        return [entry for entry in names.checkpoints(directory) if entry.age.generation > given_up]

    for temporary in names.temporaries(directory):
        if not names.is_next(temporary.target):
            skip(temporary.path, "a temporary file: it was not finished")
    entries = found()
    while entries:
        for entry in entries:
            if entry.age.generation > granted:
                skip(entry.path, f"generation {entry.age.generation} was not granted (only up to {granted})")
                continue
            try:
                loaded = _loaded(entry.path, list(skipped.items()), uid, wanted)
                was_read(directory, entry.age)
                return loaded
            except Damaged as error:
                skip(entry.path, str(error).removeprefix(f"{entry.path.name}: "))
        before, entries = entries, found()
        if entries == before:  # otherwise a writer has changed the folder meanwhile: look again
            newest = shown(entries[0].path)
            more = f" (nor the {len(entries) - 1} before it)" if len(entries) > 1 else ""
            raise CheckpointError(f"{newest} cannot be used{more}: {skipped[newest]}")
    return None


def load(path: Path, wanted: Wanted = everything) -> Loaded:
    """The checkpoint at ``path``, whatever its name and trainer; :class:`CheckpointError` if it is damaged, and
    :class:`Unreadable` if that cannot be known now."""
    return _loaded(path, [], None, wanted)


def verify(path: Path) -> list[str]:
    """Read every byte of the checkpoint at ``path``, including its parts, from the disk; returns what is wrong, one
    line each. :class:`Unreadable` if that cannot be known now."""
    return reader.verify(path)


def listing(directory: Path) -> list[FileEntry]:
    """The checkpoints in ``directory``, newest first (parts and temporary files are not checkpoints)."""
    return names.checkpoints(directory)


@uncollected()
def _loaded(path: Path, skipped: list[tuple[Path, str]], uid: str | None, wanted: Wanted) -> Loaded:
    structure, state = reader.load(path, uid, wanted)
    return Loaded(state, shown(path), structure.generation, structure.step, skipped)
