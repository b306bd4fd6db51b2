"""Slurm's node lists, such as ``nid[00001-00003,00007],login1``, and the patterns of ``pilot up --only-nodes``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod

from pilot.core.errors import UserError
from pilot.core.ids import NodeId

MOST_NODES = 1_000_000
"""No machine has more: a longer list would only fill our memory."""

_SEPARATOR = re.compile(r",(?![^\[]*\])")
_BRACKETS = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_OTHER = re.compile(r"[^A-Za-z0-9._*?-]")
_WILD = {"*": ".*", "?": "."}


@dataclass(frozen=True, slots=True)
class _Range:
    """Consecutive numbers, zero-padded to ``width`` digits."""

    numbers: range
    width: int

    @classmethod
    def read(cls, text: str) -> _Range:
        match = _RANGE.fullmatch(text)
        if match is None:
            raise ValueError(f"not a range of numbers: {text!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first):
            raise ValueError(f"a range that counts down: {text!r}")
        return cls(range(int(first), int(last) + 1), len(first))

    def __iter__(self) -> Iterator[str]:
        return (f"{number:0{self.width}}" for number in self.numbers)

    def __contains__(self, digits: str) -> bool:
        return int(digits) in self.numbers and digits == f"{int(digits):0{self.width}}"


@dataclass(frozen=True, slots=True)
class _Part:
    """One name or pattern between commas: ``texts[0]``, a number of ``brackets[0]``, ``texts[1]``, and so on."""

    texts: tuple[str, ...]
    brackets: tuple[tuple[_Range, ...], ...]

    @classmethod
    def read(cls, part: str) -> _Part:
        texts = _BRACKETS.split(part)
        if any("[" in text or "]" in text for text in texts[::2]):
            raise ValueError(f"unbalanced brackets in {part!r}")
        return cls(tuple(texts[::2]), tuple(tuple(map(_Range.read, inside.split(","))) for inside in texts[1::2]))

    def count(self) -> int:
        return prod(sum(len(one.numbers) for one in ranges) for ranges in self.brackets)

    def names(self) -> Iterator[NodeId]:
        first, *others = self.texts
        for chosen in product(*([digits for one in ranges for digits in one] for ranges in self.brackets)):
            yield NodeId(first + "".join(map("".join, zip(chosen, others, strict=True))))

    def matches(self, host: str) -> bool:
        texts = ("".join(_WILD.get(c) or re.escape(c) for c in text) for text in self.texts)
        found = re.fullmatch("([0-9]{1,18})".join(texts), host)
        return found is not None and all(
            any(digits in one for one in ranges) for digits, ranges in zip(found.groups(), self.brackets, strict=True)
        )


def _parts(text: str) -> list[_Part]:
    return [_Part.read(part) for part in _SEPARATOR.split(text) if part]


def expand(nodes: str) -> list[NodeId]:
    """Return the nodes of a list, in its order; a name may have several brackets, anywhere in it.

    ``ValueError`` if it is malformed or names more than ``MOST_NODES`` nodes, which is found before any is created.
    """
    parts = _parts(nodes)
    if sum(part.count() for part in parts) > MOST_NODES:
        raise ValueError(f"a list of more than {MOST_NODES:,} nodes")
    return [node for part in parts for node in part.names()]


@dataclass(frozen=True, slots=True)
class NodePattern:
    """Patterns of host names, separated by commas: ``*`` matches any text, ``?`` any character, and brackets hold
    numbers as in Slurm's node lists (``[1-4,7]``). The domain of a host is ignored.
    """

    text: str
    _parts: tuple[_Part, ...]

    @classmethod
    def read(cls, text: str) -> NodePattern:
        """Parse a pattern; :class:`UserError` if it is malformed."""
        try:
            parts = _parts(text)
            if odd := [found[0] for part in parts for one in part.texts if (found := _OTHER.search(one))]:
                raise ValueError(f"invalid character {odd[0]!r}")
            if not parts:
                raise ValueError("it is empty")
        except ValueError as error:
            example = "nid[0001-0512] or x3001*,x3002*"
            raise UserError(f"{text!r} is not a node pattern: {error}; for example {example}") from None
        return cls(text, tuple(parts))

    def matches(self, host: str) -> bool:
        """Return whether ``host`` matches."""
        return any(part.matches(host.partition(".")[0]) for part in self._parts)
