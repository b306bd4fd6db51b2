"""make release: build the sdist and the wheel of this commit in dist/, and try the wheel on each Python that is here.

Prints one line for each check, and exits with 1 if one failed. It tags, signs and uploads nothing, and leaves nothing
behind but dist/. Environment variables: TORCH is the requirement that installs PyTorch, PYTHONS the interpreters,
separated by spaces (default: ``python3.N`` of each version that the classifiers name).
"""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from pathlib import Path

from pilot import __version__

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
PACKAGES = ("pilot", "launchers", "site_configs")
LIMIT_S = 1800.0


class Failed(Exception):
    """A check failed; the message says how."""


def main() -> int:
    """Return the exit status."""
    with tempfile.TemporaryDirectory(prefix="release-") as name:
        folder = Path(name)
        if not (_check("commit", _commit) and _check("changelog", _changelog)):
            return 1
        if not _check("build", lambda: _build(folder)):
            return 1
        passed = [_check("contents", _contents), _check("metadata", _metadata)]
        for python in _pythons():
            passed += _tried(python, folder / "trial")
            shutil.rmtree(folder / "trial")  # each takes gigabytes if torch brings CUDA
    print(f"{passed.count(False)} checks failed. Files: dist/. Nothing was tagged, signed or uploaded.")
    return 0 if all(passed) else 1


def _check(what: str, run: Callable[[], str]) -> bool:
    """Print ``what`` with the answer of ``run``, or with why it failed; return whether it passed."""
    try:
        print(f"ok    {what}: {run()}", flush=True)
    except Failed as failed:
        print(f"FAIL  {what}: {failed}", flush=True)
        return False
    return True


def _commit() -> str:
    """The files are those of a commit, and no other commit has the tag of this version."""
    if changed := _run("git", "status", "--porcelain"):
        raise Failed(f"there are uncommitted changes: {', '.join(changed.splitlines())}")
    head = _run("git", "rev-parse", "HEAD")
    if _run("git", "tag", "--list", f"v{__version__}") and _run("git", "rev-parse", f"v{__version__}^{{}}") != head:
        raise Failed(f"another commit has the tag v{__version__}; raise __version__ in pilot/core/version.py")
    return head


def _changelog() -> str:
    text = (ROOT / "CHANGELOG.md").read_text()
    heading = re.search(rf"^## {re.escape(__version__)} \(20\d\d-\d\d-\d\d\)$", text, re.MULTILINE)
    if heading is None:
        raise Failed(f"there is no heading '## {__version__} (YYYY-MM-DD)'")
    return heading[0].removeprefix("## ")


def _build(folder: Path) -> str:
    """Build from what git has, so that neither file holds what only lies here; the wheel is built from the sdist."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run("git", "archive", "--prefix=source/", "-o", str(folder / "source.tar"), "HEAD")
    shutil.unpack_archive(folder / "source.tar", folder, filter="data")
    python = _venv(sys.executable, folder / "tools")
    _run(python, "-m", "pip", "install", "--quiet", "build", "twine")
    _run(python, "-m", "build", "--outdir", str(DIST), str(folder / "source"))
    files = sorted(DIST.iterdir())
    _run(python, "-m", "twine", "check", "--strict", *map(str, files))
    return ", ".join(f"{path.name} ({path.stat().st_size >> 10} KiB)" for path in files)


def _contents() -> str:
    """The wheel has each file of the packages (site files, templates, py.typed), the demo's scripts, and no other."""
    with zipfile.ZipFile(_wheel()) as archive:
        names = [re.sub(r"^.*\.data/data/share/pilot/", "", name) for name in archive.namelist()]
    found = {name for name in names if ".dist-info/" not in name}
    wanted = {*_run("git", "ls-files", *PACKAGES).splitlines(), "examples/digits_cnn.py", "examples/digits_mlp.py"}
    if found != wanted:
        raise Failed(f"the wheel lacks {sorted(wanted - found)}, and should not have {sorted(found - wanted)}")
    return f"{len(found)} files, those of {', '.join(PACKAGES)} and the demo"


def _metadata() -> str:
    about = _about()
    said = f"{about['Name']} {about['Version']}, {about['License-Expression']} ({about['License-File']})"
    if said != f"pilot-train {__version__}, Apache-2.0 (LICENSE)":
        raise Failed(said)
    return f"{said}, Python {about['Requires-Python']}"


def _pythons() -> Iterator[str]:
    """Yield the interpreters that run here, and tell of those that do not."""
    supported = re.findall(r":: (3\.\d+)$", "\n".join(_about().get_all("Classifier", [])), re.MULTILINE)
    for python in os.environ.get("PYTHONS", "").split() or [f"python{version}" for version in supported]:
        try:
            _run(python, "-c", "import venv")
        except Failed:
            print(f"--    {python}: does not run here, so it is not tried", flush=True)
        else:
            yield python


def _tried(python: str, trial: Path) -> Iterator[bool]:
    """Try a plain install of the wheel, and then one with what the demo needs, from a folder outside the checkout."""
    trial.mkdir()
    pilot = str(trial / "venv" / "bin" / "pilot")
    yield _check(f"{python}, install", lambda: _install(python, trial))
    yield _check(f"{python}, version", lambda: _says(f"pilot, version {__version__}", trial, pilot, "--version"))
    yield _check(f"{python}, a site's script", lambda: _says("exec srun", trial, pilot, "sites", "show", "delta"))
    doctor = (pilot, "doctor", "--run-dir", str(trial / "pool"))
    yield _check(f"{python}, pilot doctor", lambda: _says(r"two ranks over tcp .*", trial, *doctor))
    yield _check(f"{python}, pilot demo", lambda: _demo(trial, pilot))


def _install(python: str, trial: Path) -> str:
    installed = _venv(python, trial / "venv")
    for wanted in (os.environ.get("TORCH", "torch"), str(_wheel())):
        _run(installed, "-m", "pip", "install", "--quiet", wanted)
    say = "import sys, torch; print('Python', sys.version.split()[0], 'with torch', torch.__version__)"
    return _run(installed, "-c", say)


def _demo(trial: Path, pilot: str) -> str:
    python = str(trial / "venv" / "bin" / "python")
    _run(python, "-m", "pip", "install", "--quiet", f"{_wheel()}[examples,plots]")
    return _says(r"passed in \d+ s", trial, pilot, "demo", "--output", str(trial / "demo"))


def _says(pattern: str, trial: Path, *command: str) -> str:
    """Return the part of a command's output that matches ``pattern``; its state and files are in ``trial``."""
    said = _run(*command, cwd=trial, XDG_STATE_HOME=str(trial / "state"))
    if (found := re.search(pattern, said)) is None:
        raise Failed(f"it does not print {pattern!r}: {said[-2000:]}")
    return found[0]


def _venv(python: str, folder: Path) -> str:
    """Return the interpreter of a new venv."""
    _run(python, "-m", "venv", str(folder))
    return str(folder / "bin" / "python")


def _wheel() -> Path:
    (wheel,) = DIST.glob("*.whl")
    return wheel


def _about() -> Message:
    """Return the wheel's metadata."""
    with zipfile.ZipFile(_wheel()) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def _run(*command: str, cwd: Path = ROOT, **variables: str) -> str:
    """Return what a command prints; fail with the end of that if its exit status is not 0."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    try:
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(str(error)) from None
    if done.returncode:
        raise Failed(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:].strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
