"""Which nodes a pool may use: ``nid[0001-0512],login*``, as in ``pilot up --only-nodes`` and site files."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pilot.core.errors import UserError

_SEPARATOR = re.compile(r",(?![^\[]*\])")
_TOKEN = re.compile(r"\[([^\[\]]*)\]|\*|\?|[A-Za-z0-9._-]+")
_WILD = {"*": ".*", "?": "."}
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")

EXAMPLE = "nid[0001-0512] or x3001*,x3002*"


@dataclass(frozen=True, slots=True)
class _Range:
    """Numbers from ``low`` to ``high``, zero-padded to ``width`` digits as in Slurm."""

    low: int
    high: int
    width: int

    def has(self, digits: str) -> bool:
        number = int(digits)
        return self.low <= number <= self.high and digits == f"{number:0{self.width}}"


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the patterns between commas: each group of ``regex`` must be a number in one of its ``ranges``."""

    regex: re.Pattern[str]
    ranges: tuple[tuple[_Range, ...], ...]

    def matches(self, host: str) -> bool:
        found = self.regex.fullmatch(host)
        return found is not None and all(
            any(one.has(digits) for one in ranges) for digits, ranges in zip(found.groups(), self.ranges, strict=True)
        )


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
        parts = tuple(_part(text, part) for part in _SEPARATOR.split(text) if part)
        if not parts:
            raise UserError(f"the node pattern is empty; give for example {EXAMPLE}")
        return cls(text, parts)

    def matches(self, host: str) -> bool:
        """Whether ``host`` matches."""
        return any(part.matches(host.partition(".")[0]) for part in self._parts)


def _part(whole: str, part: str) -> _Part:
    regex, ranges, at = "", [], 0
    for token in _TOKEN.finditer(part):
        if token.start() != at:
            break
        at = token.end()
        if (numbers := token[1]) is not None:
            ranges.append(tuple(_range(whole, item) for item in numbers.split(",")))
            regex += "([0-9]{1,18})"
        else:
            regex += _WILD.get(token[0]) or re.escape(token[0])
    if at != len(part):
        raise UserError(f"{whole!r} is not a node pattern: cannot read {part[at:]!r}; give for example {EXAMPLE}")
    return _Part(re.compile(regex), tuple(ranges))


def _range(whole: str, item: str) -> _Range:
    found = _RANGE.fullmatch(item)
    low, high = (found[1], found[2] or found[1]) if found else ("1", "0")
    if int(low) > int(high):
        raise UserError(
            f"{whole!r} is not a node pattern: {item!r} is not a range of numbers; give for example {EXAMPLE}"
        )
    return _Range(int(low), int(high), len(low))
