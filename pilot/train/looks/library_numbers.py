"""Numbers that a library's object has and counts, and that the script's steps compute with: a progress bar's
(``pbar.n``). Other attributes of such objects are the library's, and not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

from pilot.train.script.loop_code import value_of
from pilot.train.script.objects import NOT_THE_SCRIPTS, is_of_the_script, package_of
from pilot.train.script.step_uses import StepUses


class LibraryNumbers:
    """Looks for one session."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, str], tuple[Any, int | float]] = {}

    def changed(self, uses: StepUses) -> Iterator[str]:
        """The paths of those that have changed since this looked first. ``uses``: what the steps compute with."""
        for frame, path in uses.paths():
            *owner, name = path.split(".")
            held = value_of(frame, *owner) if owner else None
            value: Any = getattr(held, "__dict__", {}).get(name)
            if type(value) in (int, float) and _is_of_a_library(held):
                _, first = self._first.setdefault((id(held), name), (held, value))
                if first != value:
                    yield path


def _is_of_a_library(value: object) -> bool:
    kind = type(value)
    is_other = package_of(kind.__module__) not in NOT_THE_SCRIPTS and not is_of_the_script(kind)
    return is_other and not isinstance(value, type | ModuleType)
