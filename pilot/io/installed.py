"""Which Python files belong to an environment, and which are the user's, though its interpreter finds them."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
        if told.get("dir_info", {}).get("editable"):
            projects.append(told["url"])
python = [sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib")]
print(json.dumps([sum(places.values(), []), projects, python]))
"""
"""Imports none of the modules, and asks no finder of theirs: some build a package first."""


def is_installed(path: str) -> bool:
    """Whether the file is part of Python, of an installed package, or of this one. Those installed in place
    (``pip install -e``) are the user's.
    """
    return any(folder in path for folder in FOLDERS) or path.startswith(_python_and_ours())


def places_of(python: str, names: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """The folders or files of those of the top-level modules ``names`` that ``python`` finds in place; and the projects
    in place, if it did not find all names. Nothing if it cannot be asked.
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
