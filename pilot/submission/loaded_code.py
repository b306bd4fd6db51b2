"""The versions of the user's Python files that a script runs in place.

Any import, of any finder, takes a ``SourceFileLoader``, and ``runpy`` takes ``io.open_code``. A file is noted by the
path by which it was found: a link that leads elsewhere is another version. Not noted are compiled extensions, ``.pyc``
files without a source, modules in zip files, and text that a script itself reads and executes.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from itertools import islice
from pathlib import Path
from typing import Any

from pilot.host.files import read_regular
from pilot.host.printable import printable
from pilot.submission.installed import is_installed

MOST_BYTES = 16 * 1024 * 1024
"""A larger file is no module."""

PATH_MAX, FILES_AT_ONCE, FILES_MAX = 1024, 128, 2000
"""The longest path, the most files that one message names (all fit into a frame of a pilot), and the most of a trainer
whose versions are compared.
"""

COPY = "the copy made at the submission"
_versions: dict[str, str] = {}
_unreported: dict[str, str] = {}


def begin(copied: Mapping[str, bytes], copy: str = "") -> None:
    """Note from now on which files the script loads, except those ``copied`` at the submission, in version ``copy``."""
    _versions.update({COPY: copy} if copy else {})
    loaders: Any = SourceFileLoader
    get_code, open_code = loaders.get_code, io.open_code

    def noted(loader: SourceFileLoader, name: str) -> Any:
        code = get_code(loader, name)
        _note(loader.path, copied)
        return code

    def opened(path: str) -> Any:
        _note(path, copied)
        return open_code(path)

    loaders.get_code = noted
    io.open_code = opened


def versions() -> dict[str, str]:
    """Return the versions of all files loaded so far, by path, and of the ``COPY``."""
    return dict(_versions)


def new_versions() -> Iterator[dict[str, str]]:
    """Yield the versions of files loaded since the last call, by path, at most ``FILES_AT_ONCE`` at a time."""
    while _unreported:
        yield {path: _unreported.pop(path) for path in list(islice(_unreported, FILES_AT_ONCE))}


def _note(path: str, copied: Mapping[str, bytes]) -> None:
    """Note the file at ``path``, again if it has changed."""
    if is_installed(path) or path in copied or os.path.realpath(path) in copied:
        return
    with suppress(OSError):
        version = hashlib.sha256(read_regular(Path(path), MOST_BYTES)).hexdigest()
        found = os.fsencode(Path(path).absolute()).decode(errors="replace")
        name = printable(found).replace("\n", "\\n").replace("\t", "\\t")
        if len(name) <= PATH_MAX and _versions.get(name) != version and len(_versions) < FILES_MAX:
            _versions[name] = _unreported[name] = version
