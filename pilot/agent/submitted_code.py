"""Runs a trainer's code as it was submitted, even if its files have been edited since.

A module's ``__file__`` and a package's ``__path__`` are unchanged, so files beside them (data, compiled extensions,
files too large to be copied) are found as usual; only the source comes from the submission
(:mod:`pilot.submission.script_code`), however it is found: imports of any kind and ``runpy`` read it there. Tracebacks
and ``inspect`` show that source, too. This applies to the training process and its forks; a process that it *starts*
(another program, a spawned DataLoader worker) reads the files on disk.
"""

from __future__ import annotations

import importlib.util
import io
import linecache
import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from pilot.submission import script_code
from pilot.submission.installed import is_installed

Files = dict[str, bytes]
"""Contents by real path, and by paths with the links of the time of the submission."""


def install(archive: str, sha256: str) -> Files:
    """Import the code in ``archive`` from there from now on; returns its files. "": everything is run in place.
    :class:`UserError` if it cannot be read, or has another hash.
    """
    files = script_code.unpack(archive, sha256)
    folders = {str(folder) for file in files for folder in Path(file).parents}
    if files:
        _read_from(files)
        sys.path_hooks.insert(0, lambda folder: _Finder.of(folder, files, folders))
        for folder in [each for each in sys.path_importer_cache if _is_one(each, folders)]:
            del sys.path_importer_cache[folder]
    return files


def content(files: Mapping[str, bytes], path: str) -> bytes:
    """The content of the file at ``path``: as submitted if it was copied."""
    copy = _copy(files, path)
    return Path(path).read_bytes() if copy is None else copy


def is_copied(files: Mapping[str, bytes], path: str) -> bool:
    """Whether the file at ``path`` was copied."""
    return _copy(files, path) is not None


def source(files: Files, path: str) -> bytes:
    """The content of the file at ``path``, like :func:`content`; tracebacks show the submitted lines, too."""
    found = content(files, path)
    if is_copied(files, path):
        lines = importlib.util.decode_source(found).splitlines(keepends=True)
        linecache.cache[path] = (len(found), None, lines, path)  # without a time, it is never compared with the disk
    return found


def _is_one(folder: str, folders: set[str]) -> bool:
    return folder in folders or os.path.realpath(folder) in folders


def _copy(files: Mapping[str, bytes], path: str) -> bytes | None:
    if path in files or is_installed(path):
        return files.get(path)
    return files.get(os.path.realpath(path))


def _read_from(files: Files) -> None:
    """Have imports and ``runpy`` read ``files``."""
    loaders: Any = SourceFileLoader
    get_data, path_stats, open_code = loaders.get_data, loaders.path_stats, io.open_code

    def read(loader: SourceFileLoader, path: str) -> Any:
        return source(files, path) if is_copied(files, path) else get_data(loader, path)

    def stats(loader: SourceFileLoader, path: str) -> Any:
        """Refuse for a copy, so that no compiled file is read or written: it would belong to the file on disk."""
        if is_copied(files, path):
            raise OSError(f"{path} is as it was submitted")
        return path_stats(loader, path)

    def opened(path: str) -> Any:
        return io.BytesIO(source(files, path)) if is_copied(files, path) else open_code(path)

    loaders.get_data, loaders.path_stats, io.open_code = read, stats, opened


class _Finder:
    """Finds modules in one folder: first the submitted ones, then those on disk."""

    def __init__(self, folder: str, files: Files, folders: set[str], there: Any) -> None:
        self._folder = folder
        self._files = files
        self._folders = folders
        self._there = there

    @classmethod
    def of(cls, folder: str, files: Files, folders: set[str]) -> _Finder:
        """Act as a path hook; ImportError if nothing in ``folder`` was submitted."""
        if not _is_one(folder, folders):
            raise ImportError(f"{folder} is none of the submitted folders", path=folder)
        return cls(folder, files, folders, _usual(folder))

    def find_spec(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """See :class:`importlib.abc.PathEntryFinder`."""
        place = f"{self._folder}/{name.rpartition('.')[2]}"
        for file, paths in ((f"{place}/__init__.py", [place]), (f"{place}.py", None)):
            if is_copied(self._files, file):
                return importlib.util.spec_from_file_location(name, file, submodule_search_locations=paths)
        found: ModuleSpec | None = self._there.find_spec(name, target) if self._there is not None else None
        if found is None and _is_one(place, self._folders):
            found = ModuleSpec(name, None, is_package=True)
            found.submodule_search_locations = [place]
        return found

    def invalidate_caches(self) -> None:
        """See :class:`importlib.abc.PathEntryFinder`."""
        if self._there is not None:
            self._there.invalidate_caches()


def _usual(folder: str) -> Any:
    """The finder that would otherwise be used for ``folder``."""
    for hook in sys.path_hooks[1:]:
        try:
            return hook(folder)
        except ImportError:
            continue
    return None
