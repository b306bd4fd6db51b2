"""Which of many values a note names: each once, a list with many that change as one, and first those that the steps
compute with. Others may only be printed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pilot.train.script.statements import without_owners
from pilot.train.script.step_uses import StepUses

SHOWN = 5
_ITEM = re.compile(r"\[\d+\]")


def shown(found: Mapping[str, object], uses_of: Callable[[], StepUses]) -> str:
    """``found``: what has each name; ``uses_of``: returns what the steps compute with."""
    names = [*found]
    if len(names) > SHOWN:
        names = _as_one(_once(found))
        used = {f"{path}." for path in without_owners({path for _, path in uses_of().paths()})}
        names.sort(key=lambda name: not _is_used(f"{name}.".replace("[", "."), used))
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _once(found: Mapping[str, object]) -> list[str]:
    """Two variables may have one object, so that all in it has two names."""
    first: dict[tuple[str, str], str] = {}
    for name, value in found.items():
        variable = re.split(r"[.\[]", name, maxsplit=1)[0]
        within = name[len(variable) :]
        first.setdefault((within or name, str(value)), name)
    return [*first.values()]


def _as_one(names: list[str]) -> list[str]:
    lists = [_ITEM.split(name, maxsplit=1)[0] for name in names]
    return list(
        dict.fromkeys(
            f"{its}[...]" if its != name and lists.count(its) > 1 else name
            for name, its in zip(names, lists, strict=True)
        )
    )


def _is_used(name: str, used: set[str]) -> bool:
    return any(name.startswith(path) or path.startswith(name) for path in used)
