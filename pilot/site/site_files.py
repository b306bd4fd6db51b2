"""Finds and loads site files by name (first the shipped ones, then the user's own) or by path.

A site file is Python: it assigns ``site = Site(...)`` and may define ``provider(site)``, which returns a Parsl provider
to use instead of the default one.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from pilot.core.errors import SiteError
from pilot.host import scheduler_environment
from pilot.host.files import open_regular
from pilot.site.hostlist import NodePattern
from pilot.site.site import Site, SiteMistakes

STDOUT, STDERR = 1, 2


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """Redirect stdout to stderr, also that of child processes: a program may be reading our stdout."""
    with ExitStack() as undo:
        undo.enter_context(redirect_stdout(sys.stderr))
        with suppress(OSError):  # one of them is closed
            saved = os.dup(STDOUT)
            undo.callback(os.close, saved)
            os.dup2(STDERR, STDOUT)
            undo.callback(os.dup2, saved, STDOUT)
        yield


ProviderHook = Callable[[Site], Any]


@dataclass(frozen=True, slots=True)
class SiteFile:
    """A loaded site file; ``provider`` is its hook, or None. ``account_from`` is the variable that gave the site its
    account; "": the file named one, or there is none."""

    site: Site
    path: Path
    provider: ProviderHook | None
    account_from: str = ""

    def on(self, only_nodes: str | None) -> SiteFile:
        """Return the same with pilots only on these nodes; None: unchanged."""
        if only_nodes is None:
            return self
        NodePattern.read(only_nodes)  # reports a mistake as the user's, not as the site file's
        return replace(self, site=self.site.replace(only_nodes=only_nodes))

    def of_type(self, name: str) -> SiteFile:
        """Return the same for pilots of the type ``name``, one of the site's ``node_types``."""
        return replace(self, site=self.site.of_type(name))


def shipped_dir() -> Path:
    """Return the folder of the ``site_configs`` package."""
    spec = importlib.util.find_spec("site_configs")
    if spec is None or spec.origin is None:
        raise SiteError("the package site_configs is not installed; install pilot-train again")
    return Path(spec.origin).parent


def user_dir() -> Path:
    """Return the user's own folder of site files."""
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "pilot" / "sites"


def list_sites() -> dict[str, Path]:
    """Return the files of all sites by name, in alphabetical order; a shipped site comes before a user's own."""
    found: dict[str, Path] = {}
    for folder in (shipped_dir(), user_dir()):
        for path in sorted(folder.glob("*.py")):
            if not path.name.startswith("_"):
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find_site(reference: str) -> Path:
    """Return the file of a site, given its name or its path (which ends in ``.py`` or contains a slash).

    Raises
    ------
    SiteError
        There is no such file, or no site of that name; the message lists the known sites.
    """
    if reference.endswith(".py") or os.sep in reference:
        try:
            path = Path(reference).expanduser().resolve()
            open_regular(path).close()
        except (OSError, RuntimeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SiteError(f"no such site file: {reference}: {reason}") from None
        return path
    sites = list_sites()
    if reference not in sites:
        close = get_close_matches(reference, sites, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        known = f"there are: {', '.join(sites)}; or give a path; pilot sites new makes one"
        raise SiteError(f"unknown site {reference!r}{hint}; {known}")
    return sites[reference]


def load_site(reference: str) -> Site:
    """Load a site by name or path; see :func:`load_site_file`."""
    return load_site_file(reference).site


def load_site_file(reference: str) -> SiteFile:
    """Load a site file by name or path.

    Raises
    ------
    SiteError
        It does not exist, is not Python, raises, or does not define a valid ``site``: one line with file and line.
    """
    path = find_site(reference)
    try:
        return _with_account(_load(path))
    except SiteMistakes as error:
        raise SiteError(f"{_where(path, error)}: {'; '.join(error.lines)}") from None


def _with_account(loaded: SiteFile) -> SiteFile:
    """The same site with the user's account, if the file names none."""
    found = scheduler_environment.account(loaded.site.scheduler, os.environ)
    if loaded.site.account is not None or found is None:
        return loaded
    return replace(loaded, site=loaded.site.replace(account=found[0]), account_from=found[1])


def site_mistakes(reference: str) -> list[str]:
    """Return the mistakes in a site file, one line each; empty: it is valid."""
    try:
        _load(find_site(reference))
    except SiteMistakes as error:
        return error.lines
    except SiteError as error:
        return [str(error)]
    return []


def _load(path: Path) -> SiteFile:
    module = _execute(path)
    site = getattr(module, "site", None)
    if not isinstance(site, Site):
        raise SiteError(f"{path}: it must assign site = Site(...); see site_configs/_template.py")
    hook = getattr(module, "provider", None)
    if hook is not None and not callable(hook):
        raise SiteError(f"{path}: provider must be a function of the site that returns a Parsl provider")
    return SiteFile(site, path, hook)


def _execute(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"pilot_site_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise SiteError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    quiet, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        # Also the compiler's warnings: they are for the file's author.
        with warnings.catch_warnings(action="ignore"), prints_to_stderr():
            spec.loader.exec_module(module)
    except (SiteMistakes, KeyboardInterrupt):
        raise
    except SyntaxError as error:
        raise SiteError(f"{path}:{error.lineno or 1}: {error.msg}") from None
    except BaseException as error:  # the file is not our code and may raise anything
        raise SiteError(f"{_where(path, error)}: {type(error).__name__}: {_message(error)}") from None
    finally:
        sys.dont_write_bytecode = quiet
    return module


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "no message"


def _where(path: Path, error: BaseException) -> str:
    """Return ``file:line`` of the last frame inside the site file, so that an admin finds the line that raised."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}:{lines[-1]}" if lines else str(path)
