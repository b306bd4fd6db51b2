"""Installed packages: which Python files are theirs, not the user's; and the modules that scripts imported from them,
which fork servers load before the next script arrives.

There is one file of imported modules per interpreter, in a folder that all nodes of a pool share. A writer replaces the
file; if two write at once, one of the changes is lost, and is made again with the next script.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from pilot.host.files import publish, read_regular

FOLDERS = ("/site-packages/", "/dist-packages/")
"""Where packages are installed, in every scheme of ``sysconfig``, of the user's and of Debian's."""

LIMIT_S = 30.0

_ASK = """
import json, sys, sysconfig
from importlib import metadata
from importlib.machinery import PathFinder
places, projects, names = {}, [], json.load(sys.stdin)
for name in names:
    spec = PathFinder.find_spec(name)
    if spec:
        places[name] = list(spec.submodule_search_locations or [spec.origin])
if len(places) < len(names):
    for distribution in metadata.distributions():
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            projects.append(origin["url"])
python = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")]
print(json.dumps([sum(places.values(), []), projects, python]))
"""
"""Imports none of the modules, and asks no finder of theirs: some build a package first."""


def is_installed(path: str) -> bool:
    """Return whether the file is part of Python, of an installed package, or of this one. Packages installed in place
    (``pip install -e``) are the user's.
    """
    return any(folder in path for folder in FOLDERS) or path.startswith(_python_and_ours())


def places_of(python: str, names: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """Return the places of the top-level modules ``names`` that ``python`` finds outside of installed packages; and the
    projects installed in place, if it did not find all names. Nothing if ``python`` does not run.
    """
    if not names:
        return [], []
    try:
        asked = subprocess.run(
            [python, "-E", "-P", "-c", _ASK],
            input=json.dumps(names), capture_output=True, text=True, check=True, timeout=LIMIT_S,
        )  # fmt: skip
        places, projects, stdlib = json.loads(asked.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return [], []
    installed = tuple(f"{folder}/" for folder in stdlib)
    own = [place for place in places if not f"{place}/".startswith(installed) and not is_installed(place)]
    return [Path(place) for place in own], [Path(unquote(urlsplit(url).path)) for url in projects]


@cache
def _python_and_ours() -> tuple[str, ...]:
    folders = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(__file__).parents[1])}
    return tuple(f"{form}{os.sep}" for folder in folders for form in {folder, os.path.realpath(folder)})


VARIABLE = "PILOT_IMPORTS"
"""The environment variable with the path of the file, for a script's process."""

NAMES_MAX = 10_000
BYTES_MAX = 4 << 20
_NAME = re.compile(r"[A-Za-z_]\w{0,99}(\.\w{1,100}){0,15}", re.ASCII)


class Imports(msgspec.Struct, frozen=True):
    """The content of the file."""

    #: in the order in which scripts began to import them, so that a module comes after those that import it
    modules: list[str] = []
    unfit: list[str] = []  #: modules that must not be loaded in advance: they start threads, use a GPU, or fail

    def wanted(self) -> list[str]:
        """Return the modules to load, dependencies first, without unfit ones and their submodules."""
        out = tuple(f"{name}." for name in self.unfit)
        return [name for name in reversed(self.modules) if not f"{name}.".startswith(out)]


def imports_file(folder: Path, python: str) -> Path:
    """Return the file of the interpreter ``python``."""
    return folder / f"{hashlib.sha256(python.encode()).hexdigest()[:16]}.json"


def read_imports(path: Path) -> Imports:
    """Read the file; empty if it is missing or cannot be read."""
    try:
        found = msgspec.json.decode(read_regular(path, BYTES_MAX), type=Imports)
    except (OSError, msgspec.DecodeError):
        return Imports()
    return Imports(*(list(filter(_NAME.fullmatch, names))[:NAMES_MAX] for names in (found.modules, found.unfit)))


def add_imports(path: Path, modules: Iterable[str] = (), unfit: Iterable[str] = ()) -> None:
    """Add modules to either list. If the disk refuses, the only cost is a slower start of the next script."""
    known = read_imports(path)
    both = Imports(list(dict.fromkeys([*known.modules, *modules])), list(dict.fromkeys([*known.unfit, *unfit])))
    if both != known:
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, exist_ok=True)
            publish(path, msgspec.json.encode(both))
