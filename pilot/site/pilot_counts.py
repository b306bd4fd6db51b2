"""How many pilots to keep: a number, or one for each type of nodes that the site names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pilot.core.errors import UserError
from pilot.site.site import Site

AUTO = "auto"
MOST = 1_000_000

Counts = Mapping[str, int]
"""Pilots by type; by "" where the site names no types."""


def parse(texts: Iterable[str]) -> dict[str, int] | None:
    """Return the counts in ``texts`` (``8``, or ``a100:8`` and so on); None: as many as the trainers can use.
    :class:`UserError` if one is malformed, or there are several for one type."""
    if (given := [*texts]) == [AUTO]:
        return None
    found: dict[str, int] = {}
    for text in given:
        name, colon, count = text.rpartition(":")
        is_number = count.isascii() and count.isdecimal() and len(count) < 10 and int(count) <= MOST
        if (not is_number and text != AUTO) or (colon and not name):
            raise UserError(f"--pilots must be a number from 0 to {MOST}, {AUTO}, or TYPE:NUMBER; got {text!r}")
        if text == AUTO or name in found or (found and "" in (name, *found)):
            raise UserError(f"--pilots {text}: give one number, or one for each type of nodes")
        found[name] = int(count)
    return found or None


def text_of(counts: Counts | None) -> str:
    """Return ``counts`` as :func:`parse` reads them, separated by commas."""
    if counts is None:
        return AUTO
    return ",".join(f"{name}:{count}" if name else str(count) for name, count in counts.items())


def check(site: Site, counts: Counts | None) -> None:
    """:class:`UserError` if ``counts`` are not by the types that ``site`` names."""
    types = ", ".join(site.node_types)
    if types and (counts is None or "" in counts):
        each = " ".join(f"--pilots {name}:N" for name in site.node_types)
        raise UserError(f"site {site.name} has nodes of several types; say how many pilots to keep of each: {each}")
    for name in counts or ():
        if name and name not in site.node_types:
            known = f"there are: {types}" if types else "it names none (node_types)"
            raise UserError(f"site {site.name} has no type of nodes {name!r}; {known}")
