"""Runs a trainer's code as it was submitted, even if its files have been edited since.

A module's ``__file__`` and a package's ``__path__`` are unchanged, so files beside them (data, compiled extensions,
files too large to be copied) are found as usual; only the source comes from the submission
(:mod:`pilot.io.script_code`). Tracebacks and ``inspect`` show that source, too. This applies to the training process
and its forks; a process that it *starts* (another program, a spawned DataLoader worker) reads the files on disk.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

from pilot.io import script_code


def install(archive: str) -> dict[str, bytes]:
    """Import the modules in ``archive`` from there from now on; returns its files by path. "": everything is run in
    place."""
    files = script_code.unpack(Path(archive)) if archive else {}
    folders = {str(folder) for file in files for folder in Path(file).parents}
    if files:
        sys.path_hooks.insert(0, lambda folder: _Finder.of(folder, files, folders))
        for folder in folders:
            sys.path_importer_cache.pop(folder, None)
    return files


def source(files: dict[str, bytes], path: str) -> bytes:
    """The content of the file at ``path``: as submitted if it was copied, in which case tracebacks show that, too."""
    if path not in files:
        return Path(path).read_bytes()
    lines = importlib.util.decode_source(files[path]).splitlines(keepends=True)
    linecache.cache[path] = (len(files[path]), None, lines, path)  # without a time, it is never compared with the disk
    return files[path]


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, files: dict[str, bytes]) -> None:
        super().__init__(name, path)
        self._files = files

    def get_data(self, path: str) -> bytes:
        return source(self._files, path)

    def path_stats(self, path: str) -> Any:
        """There are none, so no compiled file is read or written: that would be the one for the file on disk."""
        raise OSError(f"{path} is as it was submitted")


class _Finder:
    """Finds modules in one folder: first the submitted ones, then those on disk."""

    def __init__(self, folder: str, files: dict[str, bytes], folders: set[str], there: Any) -> None:
        self._folder = folder
        self._files = files
        self._folders = folders
        self._there = there

    @classmethod
    def of(cls, folder: str, files: dict[str, bytes], folders: set[str]) -> _Finder:
        """As a path hook; ImportError if nothing in ``folder`` was submitted."""
        if folder not in folders:
            raise ImportError(f"{folder} is none of the submitted folders", path=folder)
        return cls(folder, files, folders, _usual(folder))

    def find_spec(self, name: str, target: ModuleType | None = None) -> ModuleSpec | None:
        """See :class:`importlib.abc.PathEntryFinder`."""
        place = f"{self._folder}/{name.rpartition('.')[2]}"
        for file, paths in ((f"{place}/__init__.py", [place]), (f"{place}.py", None)):
            if file in self._files:
                loader = _Loader(name, file, self._files)
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=paths
                )
        found: ModuleSpec | None = self._there.find_spec(name, target) if self._there is not None else None
        if found is None and place in self._folders:
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
