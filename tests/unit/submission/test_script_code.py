"""Which files are a script's own code."""

from __future__ import annotations

import hashlib
import os
import venv
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.submission import script_code
from pilot.submission.script_code import collect, unpack

OWN = {"model.py", "helper.py", "space/deep/thing.py"}
PACKAGE = {"parts/__init__.py", "parts/net.py", "parts/layers.py", "parts/by_name.py"}
SHARED = {"lib/shared/__init__.py", "lib/shared/words.py"}


def project(folder: Path) -> Path:
    """A script with a module, a package that imports another module, and unrelated files."""
    files = {
        "tools/train.py": "import os, torch, model, pilot.train\nfrom parts import net\nfrom space.deep import thing\n",
        "tools/model.py": "def late():\n    import helper\n",
        "tools/helper.py": "",
        "tools/unused.py": "",
        "tools/parts/__init__.py": "",
        "tools/parts/net.py": "from . import layers\nimport shared.words",
        "tools/parts/layers.py": "",
        "tools/parts/by_name.py": "",
        "tools/parts/vocabulary.txt": "",
        "tools/space/deep/thing.py": "",
        "lib/shared/__init__.py": "",
        "lib/shared/words.py": "this is no Python",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "tools" / "train.py"


def taken(folder: Path, code: script_code.Code) -> set[str]:
    return {str(path.relative_to(folder)) for path in code.files}


def test_all_code_below_the_folder_is_taken_and_what_is_imported_from_elsewhere(tmp_path: Path) -> None:
    script = project(tmp_path)
    (tmp_path / "tools" / os.fsdecode(b"caf\xe9.py")).touch()
    (tmp_path / "tools" / "itself.py").symlink_to("itself.py")
    for environment in ("tools/.venv/x.py", "tools/env/bin/x.py", "tools/env/pyvenv.cfg"):
        (tmp_path / environment).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / environment).touch()
    code = collect(script, script.read_bytes(), [tmp_path / "lib"])
    tools = {"train.py", "unused.py", *OWN, *PACKAGE}
    assert taken(tmp_path, code) == {f"tools/{name}" for name in tools} | SHARED
    archive = tmp_path / "code.zip"
    archive.write_bytes(code.packed())
    sha256 = hashlib.sha256(code.packed()).hexdigest()
    assert unpack(archive, sha256) == {str(path): path.read_bytes() for path in code.files}
    copied, left, in_place = code.sentences(ddp=False)
    assert left == f"not copied: {script.parent}/caf\\udce9.py (its path is not UTF-8)"
    assert "train.py and 10 more files" in copied
    assert f"all Python files below {script.parent} and what it imports from elsewhere" in copied
    assert "another version than on the first one is not let in" in in_place
    assert "each start" in code.sentences(ddp=True)[-1]


def test_of_a_folder_that_is_no_project_only_what_is_imported_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = project(tmp_path)
    for limit, most, why in (("MOST_FILES_BELOW", 5, "5 Python files"), ("MOST_ENTRIES", 9, "9 files and folders")):
        with monkeypatch.context() as patch:
            patch.setattr(script_code, limit, most)
            code = collect(script, script.read_bytes(), [tmp_path / "lib"])
        assert taken(tmp_path, code) == {f"tools/{name}" for name in {"train.py", *OWN, *PACKAGE}} | SHARED
        assert (
            f"not copied: other files below {script.parent}, which has more than {why}" in code.sentences(ddp=False)[1]
        )


def test_packages_installed_in_place_are_taken_where_the_interpreter_finds_them(tmp_path: Path) -> None:
    """By a ``.pth`` file, by a finder of the package's own (which is not asked), with a path of two spellings."""
    venv.create(tmp_path / "venv", symlinks=True)
    python, script = tmp_path / "venv/bin/python", tmp_path / "proj" / "train.py"
    [site] = (tmp_path / "venv/lib").glob("python*/site-packages")
    files = {
        script: "import numpy, listed.part, flat, missing\nfrom os import path",
        tmp_path / "one/listed/__init__.py": "import single",
        tmp_path / "one/listed/part.py": "",
        tmp_path / "one/single.py": "raise SystemExit('imported')",
        tmp_path / "two/flat/__init__.py": "raise SystemExit('imported')",
        tmp_path / "two/tests.py": "",
        site / "one.pth": f"{tmp_path}/proj/../one\n",
        site / "two-1.dist-info/METADATA": "Name: two\nVersion: 1\n",
        site
        / "two-1.dist-info/direct_url.json": f'{{"url": "file://{tmp_path}/two", "dir_info": {{"editable": true}}}}',
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code = collect(script, script.read_bytes(), python=str(python))
    own = {"one/listed/__init__.py", "one/listed/part.py", "one/single.py", "two/flat/__init__.py"}
    assert taken(tmp_path, code) == {"proj/train.py"} | own
    assert set(collect(script, script.read_bytes(), python="/bin/false").files) == {script}


def test_what_is_too_large_stays_where_it_is_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_code, "MOST_FILE_BYTES", 200)
    script = project(tmp_path)
    (tmp_path / "tools" / "model.py").write_text("#" * 201)
    code = collect(script, script.read_bytes())
    assert tmp_path / "tools" / "model.py" not in code.files
    assert "model.py (it is larger than 200 bytes)" in code.sentences(ddp=False)[1]
    monkeypatch.setattr(script_code, "MOST_PACKED_BYTES", 10)
    with pytest.raises(UserError, match="--live"):
        code.packed()


def test_code_beyond_the_limits_is_taken_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_code, "MOST_FILES", 3)
    script = project(tmp_path)
    code = collect(script, script.read_bytes())
    assert len(code.files) == 3
    assert "more than 3 files" in code.sentences(ddp=False)[1]
    assert len(code.sentences(ddp=False)) == script_code.LEFT_SHOWN + 3
