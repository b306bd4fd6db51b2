"""How far an iterator has come, without asking it for more."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any


def place_of(value: Any) -> Any:
    """Of one of Python's own, something that is another one after it was asked; None: nobody knows, or it goes over
    something else (the loader).
    """
    if type(value).__module__ not in ("builtins", "itertools"):
        return None
    if (left := operator.length_hint(value, -1)) >= 0:
        return left
    with warnings.catch_warnings(), suppress(Exception):  # not every one can be copied; itertools forgets how
        warnings.simplefilter("ignore", DeprecationWarning)
        return _place_in(value.__reduce__()[1:])
    return None


def _place_in(given: tuple[Any, ...]) -> Any:
    """What an iterator says that it is made from."""
    held = [one for part in given if isinstance(part, tuple) for one in part]
    places = [place_of(one) if isinstance(one, Iterator) else 0 for one in held]
    seen = [one if isinstance(one, int) else len(one) for one in held if isinstance(one, int | list)]
    return None if None in places else (places, seen)
