"""Damage is detected, whichever byte is wrong: it never becomes a wrong state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilot.checkpoint import store
from tests.unit.checkpoint.states import difference, trained, written

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class Pair:
    """An older checkpoint, the newest one in one file or in three, and the contents of both."""

    directory: Path
    older: dict[str, Any]
    newest: dict[str, Any]
    files: tuple[Path, ...]
    contents: tuple[bytes, ...]

    def load(self) -> store.Loaded:
        loaded = store.load_newest(self.directory, granted=1)
        assert loaded is not None
        return loaded

    def check(self) -> bool:
        """Whether the newest was used; whichever was, it is correct and the other's problem is reported."""
        loaded = self.load()
        newest_is_whole = loaded.step == 2
        assert difference(self.newest if newest_is_whole else self.older, loaded.state) is None
        assert bool(loaded.skipped) is not newest_is_whole
        return newest_is_whole


@pytest.fixture(scope="module", params=[0, 3], ids=["one file", "parts"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("checkpoints")
    older, newest = (
        trained(4),
        {**trained(4), "tied": [weight := torch.randn(5, 5), weight], "large": torch.rand(700, 700)},
    )
    written(directory, 1, older)
    written(directory, 2, newest, request.param)
    files = tuple(sorted(directory.glob("g000001-s00000002*")))
    return Pair(directory, older, newest, files, tuple(path.read_bytes() for path in files))


def _inside(pair: Pair, fraction: float, number: int) -> tuple[Path, bytes, int]:
    file = number % len(pair.files)
    return pair.files[file], pair.contents[file], int(fraction * len(pair.contents[file]))


@contextmanager
def _flipped(path: Path, position: int, byte: int, mask: int) -> Iterator[None]:
    with path.open("r+b", buffering=0) as file:
        for value in (byte ^ mask, byte):
            file.seek(position)
            file.write(bytes([value]))
            if value != byte:
                yield


@QUICK
@given(fraction=st.floats(0, 1, exclude_max=True), number=st.integers(0, 3), mask=st.integers(1, 255))
def test_a_flipped_byte_is_found_or_harmless(pair: Pair, fraction: float, number: int, mask: int) -> None:
    path, whole, position = _inside(pair, fraction, number)
    with _flipped(path, position, whole[position], mask):
        taken = pair.check()
        assert taken or store.verify(pair.directory / "g000001-s00000002.h5")


def test_every_byte_of_the_head(pair: Pair) -> None:
    """HDF5's superblock and root group, where a wrong byte could hurt most."""
    for path, whole in zip(pair.files, pair.contents, strict=True):
        for position in range(96):
            with _flipped(path, position, whole[position], 0xFF):
                pair.check()


@QUICK
@given(fraction=st.floats(0, 1, exclude_max=True), number=st.integers(0, 3))
def test_a_truncated_file_is_found(pair: Pair, fraction: float, number: int) -> None:
    path, whole, length = _inside(pair, fraction, number)
    path.write_bytes(whole[:length])
    try:
        assert not pair.check()
    finally:
        path.write_bytes(whole)


def test_a_missing_file_is_found_and_reported(pair: Pair) -> None:
    for path, whole in zip(pair.files, pair.contents, strict=True):
        path.unlink()
        loaded = pair.load()
        path.write_bytes(whole)
        assert loaded.step == 1
        reason = (pair.directory / "g000001-s00000002.h5", f"{path.name}: the file is missing")
        assert loaded.skipped == ([reason] if ".part" in path.name else [])


def test_a_hole_in_an_array_is_found(pair: Pair) -> None:
    """What a node crash can leave of an unsynced file: the right length, and zeros."""
    path, whole = pair.files[-1], pair.contents[-1]
    path.write_bytes(whole[: len(whole) // 2] + bytes(65536) + whole[len(whole) // 2 + 65536 :])
    try:
        assert not pair.check()
    finally:
        path.write_bytes(whole)


def test_verify_names_every_dataset_that_is_wrong(tmp_path: Path) -> None:
    state = {"a": torch.rand(1000), "b": torch.rand(1000), "c": torch.rand(1000)}
    path = store.write(tmp_path, 1, 1, state, kept=1).path
    whole = bytearray(path.read_bytes())
    for name in "ac":
        position = whole.find(state[name].numpy().tobytes())
        whole[position + 100] ^= 1
    path.write_bytes(whole)
    assert store.verify(path) == [
        "g000001-s00000001.h5: dataset 'a': its bytes do not match its checksum",
        "g000001-s00000001.h5: dataset 'c': its bytes do not match its checksum",
    ]
