"""A checkpoint that several ranks wrote in parallel is one checkpoint, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pilot.checkpoint import names, store, tree
from pilot.checkpoint.publish import CUT_BYTES, split
from pilot.core.errors import CheckpointError, UserError
from tests.unit.checkpoint.states import difference, states, written

LARGE = torch.arange(CUT_BYTES // 2, dtype=torch.float64).reshape(-1, 64)
STATE = {"model": {"large": LARGE, "bias": torch.rand(64), "half": LARGE.bfloat16()}, "optimizer": {0: LARGE.float()}}


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_make_one_checkpoint(tmp_path: Path, parts: int) -> None:
    path = written(tmp_path, 5, STATE, parts)
    assert store.verify(path) == []
    assert difference(STATE, store.load(path).state) is None
    assert [entry.path for entry in store.listing(tmp_path)] == [path]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states, parts=st.integers(1, 4))
def test_any_state_can_be_written_in_any_number_of_parts(tmp_path: Path, state: dict[str, Any], parts: int) -> None:
    assert difference(state, store.load(written(tmp_path, 1, state, parts, kept=1)).state) is None


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 50])
def test_the_shares_are_equal_up_to_a_row_and_complete(parts: int) -> None:
    leaves = tree.encode(STATE).leaves
    shares = [list(split(leaves, part, parts)) for part in range(parts)]
    sizes = [sum((stop - start) * (len(leaf.data) // leaf.shape[0]) for leaf, start, stop in share) for share in shares]
    total = sum(len(leaf.data) for leaf in leaves)
    assert sum(sizes) == total
    assert all(abs(size - total / parts) <= 64 * 8 + 64 * 4 for size in sizes)
    for leaf in leaves:
        rows = sorted((start, stop) for share in shares for found, start, stop in share if found is leaf)
        assert [row for start, stop in rows for row in range(start, stop)] == list(range(leaf.shape[0]))


def test_h5py_reads_it_at_one_path(tmp_path: Path) -> None:
    path = written(tmp_path, 5, STATE, 3)
    with h5py.File(path, "r", locking=False) as file:
        assert file["model/large"].is_virtual
        assert torch.equal(torch.from_numpy(file["model/large"][...]), LARGE)
        assert torch.equal(torch.from_numpy(file["model/bias"][...]), STATE["model"]["bias"])
        assert torch.equal(torch.from_numpy(file["model/half"][...]), LARGE.bfloat16().float())


def test_the_directory_may_be_moved(tmp_path: Path) -> None:
    written(tmp_path / "here", 5, STATE, 3)
    moved = (tmp_path / "here").rename(tmp_path / "there") / names.checkpoint_name(1, 5)
    assert store.verify(moved) == []
    with h5py.File(moved, "r", locking=False) as file:
        assert torch.equal(torch.from_numpy(file["model/large"][...]), LARGE)


def test_no_checkpoint_before_the_index(tmp_path: Path) -> None:
    for part in range(2):
        store.write_part(tmp_path, 1, 5, part, 2, STATE)
    assert store.listing(tmp_path) == []
    assert store.load_newest(tmp_path, 1) is None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (None, r"part1of2\.h5: the file is missing"),
        ({"model": STATE["model"]}, "differ"),
        ({**STATE, "optimizer": {0: LARGE.int()}}, "differ"),
    ],
)
def test_parts_that_are_missing_or_of_another_state_make_no_checkpoint(
    tmp_path: Path, other: dict[str, Any] | None, why: str
) -> None:
    for part, state in enumerate((STATE, other)):
        if state is not None:
            store.write_part(tmp_path, 1, 5, part, 2, state)
    with pytest.raises(CheckpointError, match=why):
        store.write_index(tmp_path, 1, 5, 2, kept=1)
    assert store.listing(tmp_path) == []


def test_a_part_of_another_writing_is_found_out(tmp_path: Path) -> None:
    path = written(tmp_path, 5, STATE, 2)
    store.write_part(tmp_path, 1, 5, 1, 2, {**STATE, "optimizer": {0: LARGE.float() + 1}})
    assert store.verify(path) == [
        f"{names.part_name(1, 5, 1, 2)}: dataset 'optimizer/0': its bytes do not match its checksum"
    ]


def test_a_part_is_not_taken_for_a_checkpoint(tmp_path: Path) -> None:
    part = store.write_part(tmp_path, 1, 5, 0, 2, STATE).path
    assert store.verify(part) == [
        f"{part.name}: it is one part of a checkpoint; open the file without 'part' in its name"
    ]


def test_an_older_checkpoint_goes_with_its_parts_and_orphans_go_too(tmp_path: Path) -> None:
    written(tmp_path, 1, STATE, 2)
    store.write_part(tmp_path, 1, 2, 1, 2, STATE)  # its leader died before writing the index
    written(tmp_path, 3, STATE, 3)
    store.write_part(tmp_path, 1, 5, 0, 2, STATE)  # is being written
    store.write(tmp_path, 1, 4, STATE, kept=2)
    left = {path.name for path in tmp_path.iterdir()}
    of_step_3 = {names.part_name(1, 3, part, 3) for part in range(3)} | {names.checkpoint_name(1, 3)}
    assert left == of_step_3 | {names.checkpoint_name(1, 4), names.part_name(1, 5, 0, 2)}


def test_there_is_no_part_beyond_the_last(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="part 2 of 2"):
        store.write_part(tmp_path, 1, 5, 2, 2, STATE)
