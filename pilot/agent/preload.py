"""Preloads modules in a fork server: imports those of earlier scripts, one at a time, and decides which scripts may use
them.

A preloaded module must be the one that the script's own import would have given. If that could differ, the script is
served by a fork server without preloaded modules: if a variable that these imports read has a different value for the
script or is set by it, or if a file beside it has the name of a preloaded module.

A server that forks has one thread and has not touched a GPU; a module whose import changes that is *unfit*, and so is
one that loads files of the user's, which may be edited before the next script starts.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilot.core.errors import UserError
from pilot.submission import installed, script_code
from pilot.submission.installed import is_installed

if TYPE_CHECKING:
    from pilot.submission.submission import ForkJob, LaunchSpec

MEMORY_BYTES = 1 << 30
"""Limit for preloaded modules; workers share this memory with the fork server, and with one another."""

ALWAYS = ("PYTHON", "LD_", "CUDA_", "NVIDIA_", "OMP_", "MKL_")
"""Variables with these prefixes are read outside of Python, where we cannot notice it."""

_SETS = re.compile(r"""\[\s*["'](\w+)["']\s*\]\s*=(?!=)|(?:setdefault|putenv|unsetenv|pop)\(\s*["'](\w+)["']""")
_UPDATES = re.compile(r"environ\s*(\.update|\|=)")
_OURS = "PILOT_"
_ENVIRONMENT: Any = type(os.environ)
_read_variable = _ENVIRONMENT.__getitem__


class Preloader:
    """``loaded`` are the packages imported here, directly or indirectly; ``variables`` are those read by the imports.
    ``has_more``: there may be something left to import.
    """

    def __init__(self) -> None:
        self.loaded: set[str] = set()
        self.variables: set[str] = set()
        self.has_more = False
        self._file = Path()
        self._todo: list[str] = []
        self._base_bytes = _memory_bytes()

    def take(self, path: Path) -> None:
        """Import the modules in the file that are not loaded yet."""
        self._file = path
        self._todo = [name for name in installed.read_imports(path).wanted() if name not in sys.modules][::-1]
        self.has_more |= bool(self._todo)

    def next_name(self) -> str:
        """Return the next module for :meth:`load`; "" if nothing is left, or no memory."""
        while self._todo and self._todo[-1] in sys.modules:
            self._todo.pop()
        if self._todo and _memory_bytes() - self._base_bytes > MEMORY_BYTES:
            self._todo.clear()
        name = self._todo.pop() if self._todo else ""
        self.has_more = bool(self._todo)
        return name

    def load(self, name: str) -> str:
        """Import ``name``; returns why this process must not fork any more, or "".

        A module that cannot be imported here is left to scripts, which may find it another way.
        """
        before = set(sys.modules)
        with self._watched():
            try:
                importlib.import_module(name)
            except BaseException:  # whatever a module does, also SystemExit
                installed.add_imports(self._file, unfit=[name])
        new = sys.modules.keys() - before
        self.loaded |= {module.partition(".")[0] for module in new}
        return _unfit() or _stale(new)

    def declines(self, job: ForkJob) -> str:
        """Why ``job`` must be run without the modules loaded here; "" if it need not."""
        if not self.loaded:
            return ""
        for name, value in (job.launch.environment | job.variables).items():
            matters = name in self.variables or name.startswith(ALWAYS)
            if matters and not name.startswith(_OURS) and os.environ.get(name) != value:
                return f"its {name} is different"
        return self._hidden(Path(os.path.realpath(Path(job.launch.cwd, job.launch.script))), _submitted(job.launch))

    def _hidden(self, script: Path, submitted: Mapping[str, bytes]) -> str:
        """Why its imports could give something else: a variable that its text sets, or a file beside it."""
        texts, beside = list(submitted.values()), {Path(path) for path in submitted}
        with suppress(OSError):
            texts += [] if str(script) in submitted else [script.read_bytes()]
            beside |= set(script.parent.iterdir())
        for text in texts:
            if variable := self._set_by(text.decode(errors="replace")):
                return f"it sets {variable}"
        names = {path.relative_to(script.parent).parts[0] for path in beside if path.is_relative_to(script.parent)}
        hiding = {name.partition(".")[0] for name in names} & self.loaded
        return f"{min(hiding)} is beside it" if hiding else ""

    def _set_by(self, text: str) -> str:
        """A relevant variable that a script seems to set."""
        names = {name for pair in _SETS.findall(text) for name in pair}
        if _UPDATES.search(text):
            names.update(re.findall(r"\w+", text))
        return min((n for n in names if n in self.variables or n.startswith(ALWAYS)), default="")

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Note which variables are read."""

        def read(environment: Any, name: str) -> str:
            self.variables.add(name)
            value: str = _read_variable(environment, name)
            return value

        _ENVIRONMENT.__getitem__ = read
        try:
            yield
        finally:
            _ENVIRONMENT.__getitem__ = _read_variable


def _submitted(launch: LaunchSpec) -> dict[str, bytes]:
    """The script's own code; empty if that cannot be read, which the job itself will report."""
    with suppress(UserError):
        return script_code.unpack(launch.archive, launch.code_sha256)
    return {}


_GPUS = ("/dev/nvidia", "/dev/kfd")
"""Open in a process that has used a GPU (NVIDIA's or AMD's), whose forks could not use it."""


def _unfit() -> str:
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        return f"it started {threads - 1} threads"
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(descriptor.readlink()).startswith(_GPUS):
                return "it opened a GPU"
    return ""


def _stale(modules: Iterable[str]) -> str:
    """Name the first of ``modules`` that may be edited before the next script starts; "" if there is none."""
    specs = (getattr(sys.modules.get(name), "__spec__", None) for name in modules)
    origins = sorted(spec.origin for spec in specs if spec is not None and spec.has_location and spec.origin)
    return next((f"it loads {path}, which may be edited" for path in origins if not is_installed(path)), "")


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
