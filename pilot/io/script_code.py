"""A trainer's code as submitted: the script and its own modules that it imports, in one zip file.

It contains the script, each module beside it (or in a folder of ``PYTHONPATH``) that it imports directly or indirectly,
and all ``.py`` files of an imported package, because some may be imported by a name built at run time. Installed
packages, data and large files are not copied. Names in the zip file are absolute paths without the leading slash. For
how a node imports from it, see :mod:`pilot.agent.submitted_code`.
"""

from __future__ import annotations

import ast
import io
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pilot.core.errors import UserError
from pilot.io.files import read_regular

NAME = "code.zip"
"""In the trainer's folder."""

MOST_FILE_BYTES = 1024 * 1024
MOST_BYTES = 16 * 1024 * 1024
MOST_FILES = 5000
"""A package with more files is not copied."""

MOST_PACKED_BYTES = 4 * 1024 * 1024
"""It must fit into one message."""


@dataclass(slots=True)
class Code:
    """``files``: what was copied, by absolute path, the script first; ``left``: what was not, and why."""

    files: dict[Path, bytes] = field(default_factory=dict)
    left: dict[Path, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(map(len, self.files.values()))

    def packed(self) -> bytes:
        """As a zip file."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in self.files.items():
                archive.writestr(zipfile.ZipInfo(str(path).lstrip("/")), content, zipfile.ZIP_DEFLATED)
        if len(packed := out.getvalue()) > MOST_PACKED_BYTES:
            raise UserError(
                f"the script's code is {len(packed):,} bytes packed, and at most {MOST_PACKED_BYTES:,} can be"
                " copied; --live runs it in place"
            )
        return packed

    def sentences(self) -> list[str]:
        """What was copied, in words."""
        script, *others = self.files
        more = f" and {len(others)} more file{'s' * (len(others) != 1)} that it imports" if others else ""
        taken = f"{script.name}{more} ({self.size / 1000:.3g} kB)"
        return [
            f"copied its code: {taken}; later edits do not affect this trainer",
            *(f"not copied: {path} ({why})" for path, why in self.left.items()),
        ]


def unpack(archive: Path) -> dict[str, bytes]:
    """The files in the zip file ``archive``, by absolute path.

    Raises
    ------
    UserError : it cannot be read, or is damaged
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            return {f"/{name}": opened.read(name) for name in opened.namelist()}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise UserError(
            f"the trainer's copy of its code, {archive}, cannot be read ({error}); unless that passes, submit it again,"
            " --from this trainer if it has trained"
        ) from None


def collect(script: Path, content: bytes, added: Sequence[Path] = ()) -> Code:
    """The code of ``script``, an absolute path; ``added`` are the folders of its ``PYTHONPATH``."""
    code = Code({script: content})
    roots = [script.resolve().parent, *added]
    pending = [script]
    while pending:
        file = pending.pop()
        for name in _imported(code.files[file]):
            pending += _take(code, (found for root in roots for found in _found(root, name)))
    return code


def _imported(content: bytes) -> set[str]:
    """The modules that a file may import, by full name; those of its own package are copied with the package."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return set()  # running it will report the error
    out: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            out |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in out if name.partition(".")[0] != "pilot"}


def _found(root: Path, name: str) -> Iterator[Path]:
    """The file of module ``name`` in ``root``, or all files of its package; nothing if the module is not in
    ``root``."""
    place = root
    for part in name.split("."):
        place = place / part
        if (place / "__init__.py").is_file():
            yield from _package(place)
            return
        if (file := place.with_name(f"{part}.py")).is_file():
            yield file
            return
        if not place.is_dir():
            return


def _package(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.startswith("."))
        yield from (Path(place, name) for name in sorted(files) if name.endswith(".py"))


def _take(code: Code, files: Iterable[Path]) -> list[Path]:
    """Add those of ``files`` that are new, as far as the limits allow; returns the added ones."""
    out, size = [], code.size
    for file in files:
        if file in code.files or file in code.left:
            continue
        why, content = _read(file)
        if not why and len(code.files) >= MOST_FILES:
            why = f"more than {MOST_FILES} files"
        if not why and size + len(content) > MOST_BYTES:
            why = f"more than {MOST_BYTES:,} bytes in all"
        if why:
            code.left[file] = why
        else:
            code.files[file] = content
            size += len(content)
            out.append(file)
    return out


def _read(file: Path) -> tuple[str, bytes]:
    try:
        return "", read_regular(file, MOST_FILE_BYTES)
    except OSError as error:
        return error.strerror or str(error), b""
