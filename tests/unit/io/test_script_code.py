"""Which files are a script's own code."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.io import script_code
from pilot.io.script_code import collect, unpack


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


def test_what_a_script_imports_of_its_own_is_taken_and_nothing_else(tmp_path: Path) -> None:
    script = project(tmp_path)
    code = collect(script, script.read_bytes(), [tmp_path / "lib"])
    own = {"train.py", "model.py", "helper.py", "space/deep/thing.py"}
    package = {"parts/__init__.py", "parts/net.py", "parts/layers.py", "parts/by_name.py"}
    shared = {"lib/shared/__init__.py", "lib/shared/words.py"}
    assert taken(tmp_path, code) == {f"tools/{name}" for name in own | package} | shared
    archive = tmp_path / "code.zip"
    archive.write_bytes(code.packed())
    assert unpack(archive) == {str(path): path.read_bytes() for path in code.files}
    assert "train.py and 9 more files" in code.sentences()[0]


def test_what_is_too_large_stays_where_it_is_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_code, "MOST_FILE_BYTES", 200)
    script = project(tmp_path)
    (tmp_path / "tools" / "model.py").write_text("#" * 201)
    code = collect(script, script.read_bytes())
    assert tmp_path / "tools" / "model.py" not in code.files
    assert "model.py (it is larger than 200 bytes)" in code.sentences()[1]
    monkeypatch.setattr(script_code, "MOST_PACKED_BYTES", 10)
    with pytest.raises(UserError, match="--live"):
        code.packed()


def test_a_package_beyond_the_limits_is_taken_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_code, "MOST_FILES", 3)
    script = project(tmp_path)
    code = collect(script, script.read_bytes())
    assert len(code.files) == 3
    assert "more than 3 files" in code.sentences()[1]
