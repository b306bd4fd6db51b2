"""A trainer's code as submitted: the script and the user's own modules, in one zip file.

It contains all ``.py`` files below the script's folder, unless these are too many for one project; and each module in a
folder of ``PYTHONPATH``, or of a package installed in place, that the script imports directly or indirectly, with all
``.py`` files of an imported package, because some may be imported by a name built at run time. Installed packages, data
and large files are not copied. Names in the zip file are real paths without the leading slash. For how a node imports
from it, see :mod:`pilot.agent.submitted_code`; what is only found at run time is compared among nodes
(:mod:`pilot.submission.installed`).
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pilot.core.errors import UserError
from pilot.host.files import read_regular
from pilot.host.printable import printable
from pilot.submission.installed import places_of

MOST_FILE_BYTES = 1024 * 1024
MOST_BYTES = 16 * 1024 * 1024
MOST_FILES = 5000

MOST_FILES_BELOW = 1000
MOST_BYTES_BELOW = 4 * 1024 * 1024
"""A script's folder with more Python files is not one project (a home directory, say)."""

MOST_ENTRIES = 20_000
"""Files and folders of all kinds examined below one folder."""

ENVIRONMENTS = ("pyvenv.cfg", "conda-meta")
"""Names by which a virtual environment, or one of conda, is recognized."""

LEFT_SHOWN = 5

COMPARED = "a node on which they have another version than on the first one is not let in"
EACH_START = "each start of its processes reads them again"

MOST_PACKED_BYTES = 4 * 1024 * 1024
"""It must fit into one message."""


@dataclass(slots=True)
class Code:
    """The files of a script that are copied."""

    files: dict[Path, bytes] = field(default_factory=dict)  #: content by real path, the script first
    left: dict[Path, str] = field(default_factory=dict)  #: files that were not copied, with reasons
    folder_left: str = ""  #: why not all Python files below the script's folder were copied; "": they were
    links: dict[str, str] = field(default_factory=dict)  #: real paths of given paths that are links

    @property
    def size(self) -> int:
        """Total size in bytes."""
        return sum(map(len, self.files.values()))

    def packed(self) -> bytes:
        """Return them as a zip file."""
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, content in self.files.items():
                archive.writestr(zipfile.ZipInfo(str(path).lstrip("/")), content, zipfile.ZIP_DEFLATED)
            archive.comment = json.dumps(self.links).encode()
        if len(packed := out.getvalue()) > MOST_PACKED_BYTES:
            raise UserError(
                f"the script's code is {len(packed):,} bytes packed, and at most {MOST_PACKED_BYTES:,} can be"
                " copied; --live runs it in place"
            )
        return packed

    def sentences(self, *, ddp: bool) -> list[str]:
        """Describe the copied files, and those that are read in place."""
        script, *others = self.files
        folder, why = script.parent, self.folder_left
        which = [] if why else [f"all Python files below {folder}"]
        if why or any(not other.is_relative_to(folder) for other in others):
            which.append("what it imports" if why else "what it imports from elsewhere")
        more = f" and {len(others)} more file{'s' * (len(others) != 1)}" if others else ""
        left = [f"other files below {folder}, which has {why}"] if why else []
        left += [f"{printable(str(path))} ({reason})" for path, reason in self.left.items()]
        left[LEFT_SHOWN:] = [f"{len(left) - LEFT_SHOWN} more"] if len(left) > LEFT_SHOWN else []
        return [
            f"copied its code: {script.name}{more} ({self.size / 1000:.3g} kB): {' and '.join(which)}; edits to what"
            " was copied do not affect this trainer",
            *(f"not copied: {each}" for each in left),
            f"read in place: modules of yours that it only finds as it runs; {EACH_START if ddp else COMPARED}",
        ]


def archive_in(folder: Path, sha256: str) -> Path:
    """Return the path in a trainer's ``folder`` for the code with this SHA-256: so the old code stays until it is
    recorded that the new code runs."""
    return folder / f"code-{sha256[:16]}.zip"


def archives_in(folder: Path) -> list[Path]:
    """Return all copies of code in a trainer's folder."""
    return sorted(folder.glob("code-*.zip"))


def unpack(archive: str, sha256: str) -> dict[str, bytes]:
    """Return the files in the zip file ``archive`` ("": none), by real path, the script first; and again by the links
    that led to them at the submission.

    Raises
    ------
    UserError : it cannot be read, or its content has another SHA-256 than ``sha256``
    """
    if not archive:
        return {}
    try:
        packed = read_regular(Path(archive), MOST_PACKED_BYTES)
        if hashlib.sha256(packed).hexdigest() != sha256:
            raise UserError(
                f"the trainer's copy of its code, {archive}, is not what was submitted: it has been replaced or"
                " damaged; submit it again, --from this trainer if it has trained"
            )
        with zipfile.ZipFile(io.BytesIO(packed)) as opened:
            files = {f"/{name}": opened.read(name) for name in opened.namelist()}
            for link, place in json.loads(opened.comment).items():
                files |= {f"{link}{file[len(place) :]}": files[file] for file in list(files) if _is_in(file, place)}
            return files
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise UserError(
            f"the trainer's copy of its code, {archive}, cannot be read ({error}); unless that passes, submit it again,"
            " --from this trainer if it has trained"
        ) from None


def collect(script: Path, content: bytes, added: Sequence[Path] = (), python: str = sys.executable) -> Code:
    """Collect the code of ``script``, run by ``python``; ``added`` are the folders of its ``PYTHONPATH``."""
    links = {str(given): str(given.resolve()) for given in (script, *added)}
    script = script.resolve()
    code = Code({script: content}, links={given: real for given, real in links.items() if given != real})
    below, code.folder_left = _below(script.parent, MOST_FILES_BELOW, MOST_BYTES_BELOW)
    if not code.folder_left:
        _take(code, below)
    roots = [script.parent, *(folder.resolve() for folder in added)]
    followed, asked, pending, taken = set[Path](), set[str](sys.stdlib_module_names), [script], dict[Path, bool]()
    while pending:
        unknown = set()
        while pending:
            file = pending.pop()
            if file in followed or file not in code.files:
                continue
            followed.add(file)
            for name in _imported(code.files[file]):
                places = {place for root in roots if (place := _place_of(root, name)) is not None}
                for place in sorted(places - taken.keys()):
                    files = _files(place)
                    taken[place] = bool(files)
                    pending += _take(code, files)
                unknown |= set() if any(taken[place] for place in places) else {name.partition(".")[0]}
        new = sorted(unknown - asked)
        asked.update(new)
        pending += _take(code, _in_place(python, new))
    return code


def _is_in(file: str, place: str) -> bool:
    return file == place or file.startswith(f"{place}/")


def _imported(content: bytes) -> set[str]:
    """Return the full names of modules that a file may import, without those of its own package."""
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


def _place_of(root: Path, name: str) -> Path | None:
    """Return the file of module ``name`` in ``root``, or the folder of its package; None if it is not there."""
    place = root
    for part in name.split("."):
        place = place / part
        if (place / "__init__.py").is_file():
            return place
        if (file := place.with_name(f"{part}.py")).is_file():
            return file
        if not place.is_dir():
            return None
    return place


def _files(place: Path) -> list[Path]:
    """Return the file ``place``, or the Python files in and below the folder."""
    return _below(place)[0] if place.is_dir() else [place]


def _in_place(python: str, names: Sequence[str]) -> Iterator[Path]:
    """Yield the files of packages and modules in ``names`` that are installed in place."""
    found, projects = places_of(python, names)
    places = [place for place in found if place.is_dir() or place.suffix == ".py"]
    roots = [root for project in projects for root in (project, project / "src")]
    places += [place for root in roots for name in names if (place := _place_of(root, name)) is not None]
    for place in places:
        yield from _files(place)


def _below(folder: Path, most_files: int = MOST_FILES, most_bytes: int = MOST_BYTES) -> tuple[list[Path], str]:
    """Return the Python files in and below ``folder``, without environments, and the limit that cut them ("": none)."""
    out, size, entries, pending = list[Path](), 0, 0, [folder]
    while pending:
        found, folders = list[Path](), list[Path]()
        for entry in _entries(pending.pop()):
            entries += 1
            if entries > MOST_ENTRIES:
                return sorted(out), f"more than {MOST_ENTRIES:,} files and folders"
            if entry.name in ENVIRONMENTS:
                found, folders = [], []
                break
            if entry.is_dir(follow_symlinks=False):
                folders += [] if entry.name.startswith((".", "__pycache__")) else [Path(entry.path)]
            elif entry.name.endswith(".py"):
                with suppress(OSError):  # a link to itself, or it has gone since
                    size += entry.stat().st_size
                    found += [Path(entry.path)] * entry.is_file()
        out += found
        pending += folders
        if len(out) > most_files or size > most_bytes:
            return sorted(out), f"more than {most_files:,} Python files, or {most_bytes:,} bytes of them"
    return sorted(out), ""


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of ``folder``; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries


def _take(code: Code, found: Iterable[Path]) -> list[Path]:
    """Add new files as far as the limits allow; returns the real paths of all."""
    files, size = [Path(os.path.realpath(path)) for path in found], code.size
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
    return files


def _read(file: Path) -> tuple[str, bytes]:
    try:
        str(file).encode()
        return "", read_regular(file, MOST_FILE_BYTES)
    except UnicodeEncodeError:
        return "its path is not UTF-8", b""
    except OSError as error:
        return error.strerror or str(error), b""
