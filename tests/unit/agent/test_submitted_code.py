"""A script runs as it was submitted, even if its files have changed since."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from pilot.agent import submitted_code
from pilot.core.errors import UserError
from pilot.submission.script_code import collect

RUN = """
import sys, types
from pilot.agent import submitted_code
archive, sha256, script = sys.argv[1:]
files = submitted_code.install(archive, sha256)
sys.path.insert(0, script.rpartition("/")[0])
main = types.ModuleType("__main__")
main.__file__ = script
sys.modules["__main__"] = main
exec(compile(submitted_code.source(files, script), script, "exec"), main.__dict__)
"""

SCRIPT = """
import importlib, inspect, os, traceback
import model, parts.net
from parts import net, later
print(__file__, model.__file__, model.NUMBER, net.read(), os.path.exists(model.__cached__))
print(importlib.reload(model).NUMBER, inspect.getsource(net.read).splitlines()[0])
try:
    model.fail()
except ValueError:
    print(traceback.format_exc().splitlines()[-2].strip())
import fresh
print(fresh.NUMBER)
"""

FILES = {
    "train.py": SCRIPT,
    "model.py": "NUMBER = 1\ndef fail():\n    raise ValueError('as it was')\n",
    "parts/__init__.py": "",
    "parts/net.py": "import pathlib\ndef read():\n    return pathlib.Path(__file__).with_name('data.txt').read_text()",
    "parts/later.py": "",
    "parts/data.txt": "old data",
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def test_only_the_code_is_as_it_was_submitted(tmp_path: Path) -> None:
    """``__file__``, data and new files are where they are; an edited, renamed or deleted module does not matter."""
    write(tmp_path, FILES)
    script, archive = tmp_path / "train.py", tmp_path / "code.zip"
    archive.write_bytes(collect(script, script.read_bytes()).packed())
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    edited = {name: "raise SystemExit('edited')\n" for name in FILES if name.endswith(".py")}
    write(tmp_path, edited | {"parts/data.txt": "new data", "fresh.py": "NUMBER = 7"})
    (tmp_path / "parts" / "later.py").unlink()
    done = run(RUN, archive, sha256, script)
    assert done.stdout.splitlines() == [
        f"{script} {tmp_path / 'model.py'} 1 new data False",
        "1 def read():",
        "raise ValueError('as it was')",
        "7",
    ], done.stderr
    assert not list((tmp_path / "parts").glob("__pycache__/net*"))


RUN_NOTED = f"""{RUN.replace("exec(", "from pilot.submission import loaded_code; loaded_code.begin(files); exec(", 1)}
for files in loaded_code.new_versions():
    print(*sorted(path.rpartition("/")[2] + "=" + sha for path, sha in files.items()))
"""

WAYS = {
    "path": "sys.path.insert(0, lib); import path",
    "name": "sys.path.append(lib); name = importlib.import_module('na' + 'me')",
    "space": "sys.path.insert(0, f'{lib}/..'); space = importlib.import_module('lib.space')",
    "run": "run = types.SimpleNamespace(**runpy.run_path(f'{lib}/run.py'))",
    "module": "module = types.SimpleNamespace(**runpy.run_module('module'))",
    "listed": "site.addsitedir(f'{lib}/sites'); import listed",
    "editable": "sys.meta_path.append(AsOfSetuptools); import editable",
}
"""By module: how the script finds it."""

FINDS = """
import importlib, importlib.util, runpy, site, sys, types
lib = {lib!r}
class AsOfSetuptools:
    def find_spec(name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, f"{{lib}}/{{name}}.py") if name == "editable" else None
{ways}
print({modules})
"""


@pytest.mark.parametrize("place", ["below", "elsewhere"])
def test_modules_found_at_run_time_are_as_submitted_or_are_noted(tmp_path: Path, place: str) -> None:
    """Below the script's folder they were copied. Elsewhere they are read in place, and their versions are noted."""
    script, archive = tmp_path / "project" / "train.py", tmp_path / "code.zip"
    lib = (script.parent if place == "below" else tmp_path) / "lib"
    modules = ", ".join(f"{name}.VERSION" for name in WAYS)
    text = FINDS.format(lib=str(lib), ways="\n".join(WAYS.values()), modules=modules)
    (lib / "sites").mkdir(parents=True)
    (lib / "sites" / "x.pth").write_text(f"{lib}\n")
    write(lib, {f"{name}.py": "VERSION = 'one'\n" for name in WAYS})
    script.parent.mkdir(exist_ok=True)
    script.write_text(text)
    archive.write_bytes(collect(script, script.read_bytes()).packed())
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    write(lib, {f"{name}.py": "VERSION = 'two'\n" for name in WAYS})
    done = run(RUN_NOTED, archive, sha256, script)
    version, *noted = done.stdout.splitlines()
    assert version.split() == ["one" if place == "below" else "two"] * len(WAYS), done.stderr
    edited = hashlib.sha256(b"VERSION = 'two'\n").hexdigest()
    found = {each for line in noted for each in line.split() if not each.startswith("x.pth=")}
    assert found == (set() if place == "below" else {f"{name}.py={edited}" for name in WAYS})


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_copy_that_was_replaced_is_not_run(tmp_path: Path) -> None:
    archive, script = tmp_path / "code.zip", tmp_path / "train.py"
    submitted, other = (collect(script, text).packed() for text in (b"print('trains')", b"print('steals')"))
    archive.write_bytes(other)
    with pytest.raises(UserError, match=r"copy of its code, .*code\.zip, is not what was submitted.*submit it again"):
        submitted_code.install(str(archive), hashlib.sha256(submitted).hexdigest())


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "changed"])
def test_an_unreadable_copy_is_reported_with_advice(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "code.zip"
    packed = collect(tmp_path / "train.py", b"print('trained')\n" * 9).packed()
    middle = packed.index(b"train.py") + len(b"train.py")
    damaged = {"empty": b"", "cut": packed[:-30], "changed": packed[:middle] + b"\xff" * 9 + packed[middle + 9 :]}
    if damage in damaged:
        archive.write_bytes(damaged[damage])
    with pytest.raises(UserError, match=r"copy of its code, .*code\.zip, cannot be read.* submit it again"):
        submitted_code.install(str(archive), hashlib.sha256(damaged.get(damage, b"")).hexdigest())
