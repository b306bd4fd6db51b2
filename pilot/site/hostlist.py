"""Slurm's compressed node lists: ``nid[00001-00003,00007],login1`` names five nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain, product
from math import prod

from pilot.core.ids import NodeId

MOST_NODES = 1_000_000
"""No machine has more: a longer list would only fill our memory."""

_SEPARATOR = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")

Ranges = list[tuple[range, int]]


def expand(nodes: str) -> list[NodeId]:
    """The nodes that a list names, in its order; a name may have several brackets, anywhere in it.

    ``ValueError`` if it is malformed or names more than ``MOST_NODES`` nodes, which is found before any is created.
    """
    parts = [_parsed(part) for part in _SEPARATOR.split(nodes) if part]
    counts = (prod(sum(len(numbers) for numbers, _ in bracket) for bracket in brackets) for _, brackets in parts)
    if sum(counts) > MOST_NODES:
        raise ValueError(f"a list of more than {MOST_NODES:,} nodes")
    return [node for texts, brackets in parts for node in _named(texts, brackets)]


def _parsed(part: str) -> tuple[list[str], list[Ranges]]:
    """A part of a list: the texts around its brackets, and what is in these."""
    texts = _BRACKETS.split(part)
    if any("[" in text or "]" in text for text in texts[::2]):
        raise ValueError(f"unbalanced brackets in {part!r}")
    return texts[::2], [[_range(item) for item in bracket.split(",")] for bracket in texts[1::2]]


def _named(texts: Sequence[str], brackets: Sequence[Ranges]) -> Iterator[NodeId]:
    each = ([f"{number:0{width}}" for numbers, width in bracket for number in numbers] for bracket in brackets)
    for chosen in product(*each):
        yield NodeId("".join(chain.from_iterable(zip(texts, (*chosen, ""), strict=True))))


def _range(item: str) -> tuple[range, int]:
    """A range between brackets, with the number of digits."""
    match = _RANGE.fullmatch(item)
    if match is None:
        raise ValueError(f"not a range of numbers: {item!r}")
    first, last = match[1], match[2] or match[1]
    if int(last) < int(first):
        raise ValueError(f"a range that counts down: {item!r}")
    return range(int(first), int(last) + 1), len(first)
