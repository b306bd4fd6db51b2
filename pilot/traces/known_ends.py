"""A trace that says in advance when some nodes will leave, as a scheduler's plans would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from pilot.core.ids import NodeId
from pilot.traces.changes import Change


def with_ends(changes: Sequence[Change], share: float, seed: int) -> list[Change]:
    """``changes`` in which a ``share`` of the nodes that leave say so when they join, drawn with ``seed``."""
    draw, leaves = Random(seed), dict[NodeId, float]()
    told: list[Change] = []
    for change in reversed(changes):
        ends = [(node, leaves.pop(node)) for node in change.joined if node in leaves]
        leaves.update(dict.fromkeys(change.left, change.time_s))
        told.append(replace(change, ends=tuple(end for end in ends if draw.random() < share)))
    return told[::-1]
