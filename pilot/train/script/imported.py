"""Records which installed packages a script imported, so that the pilot preloads them for the next script."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from pilot.submission import installed

_before: frozenset[str] = frozenset()


def begin() -> None:
    """Note the modules that the pilot has loaded, before the script begins."""
    global _before  # a process runs one script
    _before = frozenset(sys.modules)


def record() -> None:
    """Record the script's imports when it reaches its training, because it has imported what it needs by then."""
    if path := os.environ.get(installed.VARIABLE):
        installed.add_imports(Path(path), new_modules())


def new_modules() -> list[str]:
    """Return the modules of installed packages that the script imported, in the order in which their imports began.

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
