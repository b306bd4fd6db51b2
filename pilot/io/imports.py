"""What scripts imported: modules of installed packages, which fork servers load before the next script arrives.

There is one file per interpreter, in a folder that all nodes of a pool share. A writer replaces the whole file; if two
write at once, one of the changes is lost, and is made again with the next script.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from pilot.io.files import publish, read_regular

VARIABLE = "PILOT_IMPORTS"
"""The environment variable that tells a script's process the path of the file."""

NAMES_MAX = 10_000
BYTES_MAX = 4 << 20
_NAME = re.compile(r"[A-Za-z_]\w{0,99}(\.\w{1,100}){0,15}", re.ASCII)


class Imports(msgspec.Struct, frozen=True):
    """The file.

    Parameters
    ----------
    modules : in the order in which scripts began to import them, so that a module comes after those that import it
    unfit : modules that must not be loaded in advance: they start threads, use a GPU, or fail
    """

    modules: list[str] = []
    unfit: list[str] = []

    def wanted(self) -> list[str]:
        """The modules to load, dependencies first, without unfit ones and their submodules."""
        out = tuple(f"{name}." for name in self.unfit)
        return [name for name in reversed(self.modules) if not f"{name}.".startswith(out)]


def file_of(folder: Path, python: str) -> Path:
    """The file of the interpreter ``python``."""
    return folder / f"{hashlib.sha256(python.encode()).hexdigest()[:16]}.json"


def read(path: Path) -> Imports:
    """Read the file; empty if it is missing or cannot be read."""
    try:
        found = msgspec.json.decode(read_regular(path, BYTES_MAX), type=Imports)
    except (OSError, msgspec.DecodeError):
        return Imports()
    return Imports(*(list(filter(_NAME.fullmatch, names))[:NAMES_MAX] for names in (found.modules, found.unfit)))


def add(path: Path, modules: Iterable[str] = (), unfit: Iterable[str] = ()) -> None:
    """Add modules to either list. If the disk refuses, the only cost is a slower start of the next script."""
    known = read(path)
    both = Imports(list(dict.fromkeys([*known.modules, *modules])), list(dict.fromkeys([*known.unfit, *unfit])))
    if both != known:
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            publish(path, msgspec.json.encode(both))
