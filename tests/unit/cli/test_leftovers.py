"""What counts as left behind by a pool: only what is ours, not everything in the machine's shared memory."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from pilot.cli.demo.leftovers import left_behind, unowned
from pilot.comm.mpich import segment_name
from pilot.host.proc import SHARED_MEMORY


@pytest.fixture
def names() -> Iterator[list[Path]]:
    """Segments of Open MPI, of Python, and of a rank of ours."""
    unique = uuid4().hex
    others = [f"sm_segment.host.{unique}.0", f"psm_{unique[:8]}", f"mpich_shm_of_{unique}"]
    paths = [SHARED_MEMORY / name for name in [*others, segment_name(unique, 0)]]
    for path in paths:
        path.write_bytes(b"1234")
    yield paths
    for path in paths:
        path.unlink()


def test_segments_of_other_libraries_are_not_left_behind(
    names: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilot.cli.demo.leftovers.SETTLE_S", 0.0)
    *others, ours = map(str, names)
    left = left_behind(tmp_path, unowned() - {ours})
    assert ours in left
    assert not set(others) & set(left)
    assert ours not in left_behind(tmp_path, unowned())


def test_a_segment_that_somebody_has_mapped_is_not_left_behind(names: list[Path]) -> None:
    assert str(names[-1]) in unowned()
    with names[-1].open("r+b") as file, mmap.mmap(file.fileno(), 4):
        assert str(names[-1]) not in unowned()
