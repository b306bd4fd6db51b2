"""A script runs as it was submitted, even if its files have changed since."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pilot.agent import submitted_code
from pilot.core.errors import UserError
from pilot.io.script_code import collect

RUN = """
import sys, types
from pilot.agent import submitted_code
archive, script = sys.argv[1:]
files = submitted_code.install(archive)
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
    edited = {name: "raise SystemExit('edited')\n" for name in FILES if name.endswith(".py")}
    write(tmp_path, edited | {"parts/data.txt": "new data", "fresh.py": "NUMBER = 7"})
    (tmp_path / "parts" / "later.py").unlink()
    done = subprocess.run(
        [sys.executable, "-c", RUN, archive, script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.splitlines() == [
        f"{script} {tmp_path / 'model.py'} 1 new data False",
        "1 def read():",
        "raise ValueError('as it was')",
        "7",
    ], done.stderr
    assert not list((tmp_path / "parts").glob("__pycache__/net*"))


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "changed"])
def test_a_copy_that_cannot_be_read_is_told_with_what_to_do(tmp_path: Path, damage: str) -> None:
    archive = tmp_path / "code.zip"
    packed = collect(tmp_path / "train.py", b"print('trained')\n" * 9).packed()
    middle = packed.index(b"train.py") + len(b"train.py")
    damaged = {"empty": b"", "cut": packed[:-30], "changed": packed[:middle] + b"\xff" * 9 + packed[middle + 9 :]}
    if damage in damaged:
        archive.write_bytes(damaged[damage])
    with pytest.raises(UserError, match=r"copy of its code, .*code\.zip, cannot be read.* submit it again"):
        submitted_code.install(str(archive))
