"""Slurm's compressed node lists: ``nid[00001-00003,00007],login1`` names five nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pilot.core.ids import NodeId

_SEPARATOR = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(nodes: str) -> list[NodeId]:
    """The nodes that a list names, in its order, brackets anywhere and more than once. ``ValueError`` if malformed."""
    return [node for part in _SEPARATOR.split(nodes) if part for node in _expand_one(part)]


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
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        if match is None:
            raise ValueError(f"not a range of numbers: {item!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"a range that counts down: {item!r}")
        yield from (str(index).zfill(len(first)) for index in range(int(first), int(last) + 1))
