"""Which node counts a trainer may have, besides its bounds: all, or those of a list (Huawei §4.3: powers of two).

A list is a rising tuple of counts; an empty one allows every count.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise

from pilot.core.errors import UserError

SIZES_MAX = 1000
"""The longest list; a longer one is a mistake."""


def check_sizes(sizes: tuple[int, ...], least: int, most: int) -> None:
    """Raise :class:`UserError` unless ``sizes`` (not empty) are increasing and within ``least`` to ``most``."""
    if len(sizes) > SIZES_MAX:
        raise UserError(f"at most {SIZES_MAX} sizes can be given, not {len(sizes)}")
    if any(b <= a for a, b in pairwise(sizes)):
        raise UserError(f"the sizes {listed(sizes)} must be increasing, e.g. 1,2,4,8")
    outside = [n for n in sizes if not least <= n <= most]
    if outside:
        raise UserError(f"the size {outside[0]} is not between {least} and {most}, the fewest and the most nodes")


def largest_fitting(sizes: tuple[int, ...], nodes: int) -> int:
    """The largest allowed count within ``nodes`` nodes.

    Nodes that are too few for the smallest one are left as they are: they may hold a state (parked).
    """
    fits = bisect_right(sizes, nodes)
    return sizes[fits - 1] if fits else nodes


def listed(sizes: tuple[int, ...]) -> str:
    """``sizes`` as in ``1,2,4``."""
    return ",".join(map(str, sizes))
