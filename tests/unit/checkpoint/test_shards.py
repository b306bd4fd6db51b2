"""What the processes of a node hold in shards is saved as whole tensors, and can be read in any rank's rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pilot.checkpoint import store, tree
from pilot.checkpoint.leaves import Leaf
from pilot.checkpoint.publish import own_rows
from pilot.checkpoint.shards import Rows, rows_on
from pilot.checkpoint.tree import Encoded
from pilot.core.errors import CheckpointError

WHOLE = {
    "wide": torch.arange(7 * 6, dtype=torch.float64).reshape(7, 6),
    "one": torch.tensor([3.5]),
    "none": torch.ones(0, 2),
}


def held(rank: int, size: int) -> Encoded:
    """The state of process ``rank`` of ``size``, as the encoder produces it from DTensors; and a number that all
    hold.
    """
    state = {"model": WHOLE, "optimizer": {"step": torch.tensor(4.0)}}
    encoded = tree.encode(state)
    return Encoded(encoded.tree, [shard(leaf, rank, size) for leaf in encoded.leaves], encoded.aliases)


def shard(leaf: Leaf, rank: int, size: int) -> Leaf:
    if not leaf.shape:
        return leaf
    rows = rows_on(leaf.shape, rank, size)
    source: Any = leaf.source
    return Leaf(
        leaf.path, leaf.dtype, (rows.count, *leaf.shape[1:]), source[rows.first : rows.first + rows.count], rows
    )


def written(folder: Path, nodes: int, size: int) -> Path:
    for part in reversed(range(nodes * size)):
        store.write_part(
            folder, 1, 5, part, nodes * size, own_rows(tree.encode(held(part % size, size)), part // size, nodes)
        )
    return store.write_index(folder, 1, 5, nodes * size, 9).path


@pytest.mark.parametrize(("nodes", "size"), [(1, 2), (2, 2), (3, 4), (2, 1)])
def test_shards_make_complete_tensors(tmp_path: Path, nodes: int, size: int) -> None:
    path = written(tmp_path, nodes, size)
    assert store.verify(path) == []
    state = store.load(path).state
    for name, tensor in WHOLE.items():
        assert torch.equal(state["model"][name], tensor)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_they_are_read_as_the_rows_of_another_number_of_processes(tmp_path: Path, size: int) -> None:
    path = written(tmp_path, 2, 2)
    for rank in range(size):

        def wanted(_path: str, shape: tuple[int, ...], rank: int = rank) -> Rows | None:
            return rows_on(shape, rank, size) if shape else None

        state = store.load(path, wanted).state
        for name, tensor in WHOLE.items():
            rows = rows_on(tuple(tensor.shape), rank, size)
            assert torch.equal(state["model"][name], tensor[rows.first : rows.first + rows.count])
        assert state["optimizer"]["step"] == 4


def test_damage_in_rows_that_are_not_wanted_is_seen(tmp_path: Path) -> None:
    path = written(tmp_path, 1, 2)
    part = next(tmp_path.glob("*part1*"), None) or sorted(tmp_path.glob("*part*"))[1]
    content = bytearray(part.read_bytes())
    at = content.find(WHOLE["wide"][4:].numpy().tobytes())
    assert at > 0
    content[at + 3] ^= 1
    part.write_bytes(content)
    with pytest.raises(CheckpointError, match="do not match"):
        store.load(path, lambda _path, shape: rows_on(shape, 0, 2) if shape else None)


def test_one_process_cannot_save_a_shard_as_the_tensor(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a shard"):
        store.write(tmp_path, 1, 5, held(0, 2), 9)


def test_a_missing_shard_makes_no_checkpoint(tmp_path: Path) -> None:
    for part, rank in enumerate((0, 0, 2)):
        store.write_part(tmp_path, 1, 5, part, 3, held(rank, 3))
    with pytest.raises(CheckpointError, match="no part has some rows of"):
        store.write_index(tmp_path, 1, 5, 3, 9)
