"""Which rows a rank writes of tensors that are sharded over the ranks of its node."""

from __future__ import annotations

from dataclasses import replace

from pilot.checkpoint.leaves import Leaf
from pilot.checkpoint.shards import Rows
from pilot.checkpoint.tree import Encoded


def own_rows(state: Encoded, node: int, nodes: int) -> Encoded:
    """``state`` with only the rows of sharded tensors that a rank of node ``node`` of ``nodes`` writes, because all
    nodes hold the same ones. Nothing is copied.
    """
    leaves = (leaf if leaf.rows is None else _some_rows(leaf, leaf.rows, node, nodes) for leaf in state.leaves)
    return replace(state, leaves=[leaf for leaf in leaves if leaf is not None])


def _some_rows(leaf: Leaf, rows: Rows, node: int, nodes: int) -> Leaf | None:
    start, stop = rows.count * node // nodes, rows.count * (node + 1) // nodes
    if start == stop and rows.whole[0]:
        return None
    own = Rows(rows.whole, rows.first + start, stop - start)
    return Leaf(leaf.path, leaf.dtype, (own.count, *leaf.shape[1:]), leaf.source[start:stop], own)
