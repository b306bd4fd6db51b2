"""Tells the pilot which installed packages a script imported, so that they are preloaded for the next script."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from pilot.submission import installed

_before: frozenset[str] = frozenset()


def begin() -> None:
    """The script begins: modules loaded by now were loaded by its pilot."""
    global _before  # a process runs one script
    _before = frozenset(sys.modules)


def tell() -> None:
    """The script has reached its training, so it has imported what it needs."""
    if path := os.environ.get(installed.VARIABLE):
        installed.add_imports(Path(path), new_modules())


def new_modules() -> list[str]:
    """The modules of installed packages that the script imported, in the order in which their imports began.

    The user's own modules, and packages installed in place (``pip install -e``), are not included.
    """
    places = tuple({f"{sysconfig.get_path(kind)}{os.sep}" for kind in ("purelib", "platlib")})
    return [
        name
        for name, module in list(sys.modules.items())
        if name not in _before and not name.startswith("pilot") and _origin(module).startswith(places)
    ]


def _origin(module: ModuleType) -> str:
    spec = getattr(module, "__spec__", None)
    return str(getattr(spec, "origin", None) or "")
