"""Slurm's compressed node lists: ``nid[00001-00003,00007],login1`` names five nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod

from pilot.core.ids import NodeId

MOST_NODES = 1_000_000
"""No machine has more: a longer list would only fill our memory."""

_SEPARATOR = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")


def expand(nodes: str) -> list[NodeId]:
    """The nodes that a list names, in its order; a name may have several brackets, anywhere in it.

    ``ValueError`` if it is malformed or names more than ``MOST_NODES`` nodes, which is found before any is created.
    """
    parts = [part for part in _SEPARATOR.split(nodes) if part]
    if sum(map(_count, parts)) > MOST_NODES:
        raise ValueError(f"a list of more than {MOST_NODES:,} nodes")
    return [node for part in parts for node in _expand_one(part)]


def _count(part: str) -> int:
    """How many nodes a part of a list names."""
    return prod(sum(len(range_) for range_, _ in _ranges(found)) for found in _BRACKETS.findall(part))


def _expand_one(part: str) -> Iterator[NodeId]:
    match = _BRACKETS.search(part)
    if match is None:
        if "[" in part or "]" in part:
            raise ValueError(f"unbalanced brackets in {part!r}")
        yield NodeId(part)
        return
    for index in _indices(match[1]):
        yield from _expand_one(part[: match.start()] + index + part[match.end() :])


def _indices(ranges: str) -> Iterator[str]:
    for indices, width in _ranges(ranges):
        yield from (str(index).zfill(width) for index in indices)


def _ranges(ranges: str) -> Iterator[tuple[range, int]]:
    """The ranges between brackets, each with the number of digits."""
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"not a range of numbers: {item!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"a range that counts down: {item!r}")
        yield range(int(first), int(last) + 1), len(first)
