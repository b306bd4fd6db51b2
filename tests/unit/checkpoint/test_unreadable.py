"""What cannot be read now is not damaged: no older checkpoint is loaded instead, and none is removed."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pilot.checkpoint import export, names, rawio, retention, store
from pilot.core.errors import CheckpointError, Unreadable
from pilot.host.private_folder import shown
from tests.unit.checkpoint.states import written

STATE = {"w": torch.rand(600, 600), "nested": [{"bias": torch.rand(9)}, torch.arange(3)], "step": 4}


@pytest.fixture(params=[0, 2], ids=["one file", "parts"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An older checkpoint and a newest one, which is one file or has parts."""
    directory = tmp_path / "checkpoints"
    written(directory, 1, {"w": torch.zeros(3)})
    written(directory, 2, STATE, request.param)
    return directory


def step_of(directory: Path) -> int:
    loaded = store.load_newest(directory, granted=9)
    assert loaded is not None
    return loaded.step


Read = Callable[[int, list[Any], int], int]


@contextmanager
def failing(number: int, error: OSError) -> Iterator[list[int]]:
    """The read of this number fails, of all those of checkpoints; yields the offsets that were read."""
    offsets: list[int] = []
    real: Read = os.preadv

    def preadv(fd: int, buffers: list[Any], offset: int) -> int:
        offsets.append(offset)
        if len(offsets) == number + 1:
            raise error
        return real(fd, buffers, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "preadv", preadv)
        yield offsets


def test_whichever_read_fails_the_older_one_is_not_loaded_instead(directory: Path) -> None:
    with failing(-1, OSError()) as offsets:
        assert step_of(directory) == 2
    for number in range(len(offsets)):
        with failing(number, OSError(errno.EIO, "Input/output error")), pytest.raises(Unreadable, match="Input/output"):
            store.load_newest(directory, granted=9)


def test_whichever_read_fails_nothing_is_called_damaged(directory: Path) -> None:
    path = directory / names.checkpoint_name(1, 2)
    looks: tuple[Callable[[Path], Any], ...] = (store.verify, export.describe)
    for look in looks:
        with failing(-1, OSError()) as offsets:
            assert look(path) is not None
        for number in range(len(offsets)):
            with failing(number, OSError(errno.ESTALE, "")), pytest.raises(Unreadable, match="Stale file handle"):
                look(path)


def test_a_folder_that_is_away_has_no_fewer_checkpoints(directory: Path) -> None:
    away = directory.rename(directory.with_name("away"))
    with pytest.raises(Unreadable, match=r"cannot read the folder .*: No such file or directory"):
        store.load_newest(directory, granted=9)
    with pytest.raises(Unreadable, match="No such file"):
        store.load(directory / names.checkpoint_name(1, 2))
    away.rename(directory)
    assert step_of(directory) == 2


def test_a_file_whose_every_read_fails(directory: Path) -> None:
    """Of a process's memory nothing is at 0, and the kernel says EIO."""
    path = directory / names.checkpoint_name(1, 2)
    path.unlink()
    path.symlink_to("/proc/self/mem")
    with pytest.raises(Unreadable, match=r"g000001-s00000002\.h5: Input/output error"):
        store.load_newest(directory, granted=9)


def test_a_link_that_leads_nowhere_now(directory: Path) -> None:
    path = directory / names.checkpoint_name(1, 2)
    path.rename(elsewhere := directory.parent / "elsewhere.h5")
    path.symlink_to(elsewhere.with_name("not mounted"))
    with pytest.raises(Unreadable, match="No such file"):
        store.load_newest(directory, granted=9)


def test_too_many_open_files(directory: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = os.open(directory, os.O_RDONLY)
    os.close(spare)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
    try:
        with pytest.raises(Unreadable, match="Too many open files"):
            store.load_newest(directory, granted=9)
        with pytest.raises(Unreadable, match="Too many open files"):
            store.verify(directory / names.checkpoint_name(1, 2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert step_of(directory) == 2


def test_too_little_memory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(size: int, *_: object) -> Any:
        if size >= 600 * 600 * 4:
            raise MemoryError
        return np.zeros(size, np.uint8)

    monkeypatch.setattr(rawio.np, "empty", empty)
    with pytest.raises(Unreadable, match="there is no memory to read 1,440,000 bytes"):
        store.load_newest(directory, granted=9)


def test_what_is_known_of_the_next_step(tmp_path: Path) -> None:
    path = store.write(tmp_path, 1, 1, STATE, kept=1).path
    assert store.next_step_of(path) == b""
    (tmp_path / names.next_name(1, 1)).symlink_to("/proc/self/mem")
    with pytest.raises(Unreadable, match="Input/output error"):
        store.next_step_of(path)


def test_where_all_are_damaged_there_are_some(tmp_path: Path) -> None:
    for step in (1, 2):
        (tmp_path / names.checkpoint_name(1, step)).write_bytes(b"no HDF5")
    with pytest.raises(
        CheckpointError, match=r"s00000002\.h5 cannot be used \(nor the 1 before it\): not an"
    ) as caught:
        store.load_newest(tmp_path, granted=9)
    assert not caught.value.transient
    assert store.load_newest(tmp_path, granted=9, given_up=1) is None


# --- what is removed -----------------------------------------------------------------------


def _written(directory: Path, generation: int, step: int, **more: int) -> None:
    store.write(directory, generation, step, {"w": torch.full((50,), float(step))}, kept=1, **more)


def _left(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_one_of_another_generation_goes_when_the_new_one_was_read_back(tmp_path: Path) -> None:
    _written(tmp_path, 1, 1)
    with failing(-1, OSError()) as offsets:
        _written(tmp_path, 2, 2)
    assert offsets
    assert _left(tmp_path) == [names.checkpoint_name(2, 2)]
    with failing(-1, OSError()) as offsets:
        _written(tmp_path, 2, 3)
    assert not offsets, "of the same generation, nothing is read"


def test_what_was_loaded_lets_older_ones_go_and_is_itself_kept_until_a_new_one_was_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        store.write(tmp_path, 1, step, STATE, kept=2)
    assert step_of(tmp_path) == 2
    read_back: list[Path] = []
    monkeypatch.setattr(retention, "_read_back", lambda path: read_back.append(shown(path)))
    store.write(tmp_path, 2, 3, STATE, kept=2)
    assert (_left(tmp_path), read_back) == ([names.checkpoint_name(1, 2), names.checkpoint_name(2, 3)], [])
    store.write(tmp_path, 2, 4, STATE, kept=2)
    assert read_back == [tmp_path / names.checkpoint_name(2, 4)]
    store.write(tmp_path, 3, 5, STATE, kept=2)
    assert len(read_back) == 1


def test_while_the_new_one_cannot_be_read_back_older_ones_stay(tmp_path: Path) -> None:
    _written(tmp_path, 1, 1)
    told: list[store.Written] = []
    why = "it was written, but cannot be read back: .* Input/output error; earlier checkpoints are kept"
    with failing(0, OSError(errno.EIO, "")), pytest.raises(CheckpointError, match=why):
        store.write(tmp_path, 2, 2, STATE, kept=1, on_publish=told.append)
    assert [written.path.name for written in told] == [names.checkpoint_name(2, 2)]
    assert _left(tmp_path) == [names.checkpoint_name(1, 1), names.checkpoint_name(2, 2)]
    _written(tmp_path, 2, 3)
    assert _left(tmp_path) == [names.checkpoint_name(2, 3)]


def test_what_cannot_be_read_stays(tmp_path: Path) -> None:
    path = tmp_path / names.checkpoint_name(1, 1)
    path.symlink_to("/proc/self/mem")
    _written(tmp_path, 2, 2)
    _written(tmp_path, 2, 3)
    assert _left(tmp_path) == [path.name, names.checkpoint_name(2, 3)]


def test_what_was_given_up_stays(tmp_path: Path) -> None:
    for step in (1, 2):
        store.write(tmp_path, 1, step, STATE, kept=2)
    store.write_next_step(tmp_path, 1, 9, b"next")
    for step in (1, 2):
        _written(tmp_path, 2, step, given_up=1)
    of_first = [names.checkpoint_name(1, 1), names.checkpoint_name(1, 2), names.next_name(1, 9)]
    assert _left(tmp_path) == [*of_first, names.checkpoint_name(2, 2)]


KEPT = """
import ctypes, errno, sys
from pathlib import Path
from pilot.checkpoint import rawio
from pilot.checkpoint.openfile import OpenFile
from pilot.core.errors import CheckpointError

def fails(*_):
    raise OSError(errno.EIO, "input/output error")

if sys.argv[2] == "Unreadable":
    rawio.fill = fails
try:
    OpenFile(Path(sys.argv[1]))
except CheckpointError as error:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))  # it lives longer than Python does
    print(type(error).__name__)
"""


@pytest.mark.parametrize("kind", ["Damaged", "Unreadable"])
def test_a_process_that_keeps_the_error_ends_well(tmp_path: Path, kind: str) -> None:
    """HDF5 closes what is left when the process ends, and must not call Python then."""
    path = tmp_path / "checkpoint.h5"
    path.write_bytes(b"no HDF5")
    ended = subprocess.run([sys.executable, "-c", KEPT, path, kind], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.strip()) == (0, kind), ended.stderr
