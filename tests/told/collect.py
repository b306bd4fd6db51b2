"""A pytest plugin (``-p tests.told.collect``) that records which scripts of the tests are told something by a look.

A test's scripts are numbered from 0: each session that it makes in its own thread is one, and so is each world of ranks
that are threads (:mod:`tests.told.replay` counts in the same way).
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pilot.train
from pilot.train.script import refusal
from tests.told import RECORDED
from tests.unit.train import storm

GUARDS = {"alarm", "comparison", "next_step", "harmless", "session", "collectives"}
"""What tells for another reason than a look at the script's code."""

_now: dict[str, Any] = {"item": None, "count": -1, "told": {}}
_own = threading.local()


def _kind() -> str:
    """The look that tells: the innermost module of ``pilot/train/looks``, or the module that calls ``note``."""
    frame = sys._getframe(2)
    direct = Path(frame.f_code.co_filename)
    if direct.stem == "course" and frame.f_code.co_name != "zipped":
        return ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.parent.name == "looks":
            return path.stem
        frame = frame.f_back
    return "" if direct.stem in GUARDS else f"{direct.parent.name}/{direct.stem}"


def _note(text: str) -> None:
    kind = _kind()
    if kind and _now["item"] is not None:
        world = getattr(storm._here, "world", None)
        number = world.number if world is not None else getattr(_own, "number", _now["count"])
        key = kind, re.sub(r"\d+", "0", text)
        _now["told"].setdefault(key, (number, text.replace(refusal.DOT, ".")))
    _told(text)


def _numbered(call: Any) -> Any:
    def init(self: Any, *arguments: Any, **options: Any) -> None:
        in_world = getattr(storm._here, "world", None) is not None
        if isinstance(self, storm.World) or not in_world:
            _now["count"] += 1
            self.number = _now["count"]
        if not isinstance(self, storm.World) and not in_world:
            _own.number = _now["count"]
        call(self, *arguments, **options)

    return init


_told = refusal.note


def pytest_configure() -> None:
    """Begins anew."""
    refusal.note = _note
    refusal._LIBRARIES = (*refusal._LIBRARIES, __file__)
    storm.World.__init__ = _numbered(storm.World.__init__)  # type: ignore[method-assign]  # also counts
    session: Any = pilot.train.Session
    session.__init__ = _numbered(session.__init__)
    RECORDED.write_text("")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    _now.update(item=item, count=-1, told={})
    _own.__dict__.clear()
    yield
    _now["item"] = None
    index = next(iter(item.callspec.indices.values())) if hasattr(item, "callspec") else 0
    by_script: dict[int, list[Any]] = {}
    for (kind, _), (number, text) in _now["told"].items():
        by_script.setdefault(number, []).append([kind, text])
    with RECORDED.open("a") as file:
        for number, told in sorted(by_script.items()):
            row = {"test": item.nodeid, "index": index, "number": number, "told": told}
            file.write(json.dumps(row) + "\n")
