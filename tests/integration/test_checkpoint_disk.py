"""Full disks, exceeded limits, killed writers: what was there before stays intact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pilot.checkpoint import names, store
from pilot.core.errors import CheckpointError

DEADLINE_S = 60.0
SMALL = {"w": torch.arange(1000)}
LARGE = {"w": torch.zeros(4_000_000)}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", disk], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", disk], check=True)


def _only(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


def test_a_full_disk_leaves_the_previous_checkpoint_and_no_temporary_file(small_disk: Path) -> None:
    store.write(small_disk, 1, 1, SMALL, kept=3)
    with pytest.raises(CheckpointError, match=r"step 2 was not written .* the disk is full: free some space") as caught:
        store.write(small_disk, 1, 2, LARGE, kept=3)
    assert caught.value.transient
    assert _only(small_disk) == ["g000001-s00000001.h5"]
    loaded = store.load_newest(small_disk, 1)
    assert loaded is not None
    assert torch.equal(loaded.state["w"], SMALL["w"])


@pytest.mark.parametrize("free_bytes", [0, 4096, 20_000])
def test_a_disk_that_fills_up_at_any_point(small_disk: Path, free_bytes: int) -> None:
    store.write(small_disk, 1, 1, SMALL, kept=3)
    ballast = small_disk / "ballast"
    available = os.statvfs(small_disk)
    ballast.write_bytes(bytes(max(0, available.f_bavail * available.f_frsize - free_bytes)))
    with pytest.raises(CheckpointError, match="the disk is full"):
        store.write(small_disk, 1, 2, SMALL, kept=3)
    ballast.unlink()
    store.write(small_disk, 1, 3, SMALL, kept=3)
    assert sorted(_only(small_disk)) == ["g000001-s00000001.h5", "g000001-s00000003.h5"]


def test_a_full_disk_while_writing_parts(small_disk: Path) -> None:
    store.write(small_disk, 1, 1, SMALL, kept=3)
    store.write_part(small_disk, 1, 2, 0, 2, LARGE)
    with pytest.raises(CheckpointError, match="the disk is full"):
        store.write_part(small_disk, 1, 2, 1, 2, LARGE)
    with pytest.raises(CheckpointError, match="missing"):
        store.write_index(small_disk, 1, 2, 2, kept=3)
    store.write(small_disk, 1, 3, SMALL, kept=3)
    assert sorted(_only(small_disk)) == ["g000001-s00000001.h5", "g000001-s00000003.h5"]


def test_files_of_dead_writers_make_room_before_the_write(small_disk: Path) -> None:
    stale = small_disk / f".g000001-s00000001.h5.1073741824-1@{os.uname().nodename}.tmp"
    stale.write_bytes(bytes(7_000_000))
    store.write(small_disk, 1, 2, {"w": torch.zeros(500_000)}, kept=3)
    assert _only(small_disk) == ["g000001-s00000002.h5"]


def test_a_file_size_limit(tmp_path: Path) -> None:
    program = """
import resource, sys, torch
from pathlib import Path
from pilot.checkpoint import store
from pilot.core.errors import CheckpointError
store.write(Path(sys.argv[1]), 1, 1, {"w": torch.ones(10)}, 3)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    store.write(Path(sys.argv[1]), 1, 2, {"w": torch.ones(1_000_000)}, 3)
except CheckpointError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=DEADLINE_S)
    assert "the file would exceed the size limit" in done.stdout, done.stderr
    assert _only(tmp_path) == ["g000001-s00000001.h5"]


def test_a_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="Not a directory"):
        store.write(tmp_path / "file" / "checkpoints", 1, 1, SMALL, kept=1)


WRITER = """
import itertools, sys, torch
from pathlib import Path
from pilot.checkpoint import store
torch.set_num_threads(1)
for step in itertools.count(2):
    store.write(Path(sys.argv[1]), 1, step, {"w": torch.full((4_000_000,), float(step))}, kept=2)
"""


def _writer(directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, directory])


def _kill_in_mid_write(writer: subprocess.Popen[bytes], directory: Path) -> Path:
    """Stop the writer in the middle of a write, then kill it; returns the file that it leaves."""
    deadline_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if not names.temporaries(directory):
            continue
        writer.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, writer.pid, os.WSTOPPED)
        if left := names.temporaries(directory):
            writer.kill()
            writer.wait()
            return left[0].path
        writer.send_signal(signal.SIGCONT)
    writer.kill()
    writer.wait()
    raise AssertionError("the writer was never seen writing")


def test_a_writer_killed_in_mid_write_leaves_the_previous_one_and_the_next_cleans_up(tmp_path: Path) -> None:
    store.write(tmp_path, 1, 1, SMALL, kept=2)
    left = _kill_in_mid_write(_writer(tmp_path), tmp_path)
    loaded = store.load_newest(tmp_path, 1)
    assert loaded is not None
    assert loaded.step >= 1
    assert loaded.skipped == [(left, "a temporary file: it was not finished")]
    assert all(store.verify(entry.path) == [] for entry in store.listing(tmp_path))
    store.write(tmp_path, 2, loaded.step + 1, SMALL, kept=2)
    assert not left.exists()
    assert names.temporaries(tmp_path) == []


def test_a_reader_always_finds_a_complete_checkpoint_while_another_process_writes(tmp_path: Path) -> None:
    store.write(tmp_path, 1, 1, {"w": torch.ones(4_000_000)}, kept=2)
    writer = _writer(tmp_path)
    steps = []
    try:
        deadline_s = time.monotonic() + DEADLINE_S
        while len(set(steps)) < 6:
            assert time.monotonic() < deadline_s
            loaded = store.load_newest(tmp_path, 1)
            assert loaded is not None
            assert bool((loaded.state["w"] == loaded.step).all())
            steps.append(loaded.step)
    finally:
        writer.kill()
        writer.wait()
    assert steps == sorted(steps)
