"""What ``pilot submit`` records about how the script is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilot.client.launching import launch, launch_again
from pilot.core.errors import UserError
from pilot.submission.seldom import SYNC, DiLoCo


def recorded(folder: Path, *named: str) -> dict[str, str]:
    script = folder / "train.py"
    script.write_text("")
    return launch(script, [], sys.executable, named).environment


def test_variables_are_handed_on_or_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "/here")
    given = recorded(tmp_path, "DATA", "A=1", "B=", "C=x=y", "DATA=/there")
    assert given == {"DATA": "/there", "A": "1", "B": "", "C": "x=y"}


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("NO_SUCH_VARIABLE", "not set in your environment"),
        ("=1", "NAME=VALUE"),
        ("LD_LIBRARY_PATH=/x", "when the interpreter starts"),
        ("PYTHONHASHSEED=0", "when the interpreter starts"),
    ],
)
def test_what_would_have_no_effect_is_refused(tmp_path: Path, named: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        recorded(tmp_path, named)


def test_pythonpath_is_taken(tmp_path: Path) -> None:
    assert recorded(tmp_path, "PYTHONPATH=/a:/b") == {"PYTHONPATH": "/a:/b"}


def test_a_script_that_python_cannot_read_is_refused_with_the_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ndef f(:\n")
    with pytest.raises(UserError, match=r"train\.py, line 2: invalid syntax"):
        launch(script, [], sys.executable, ())
    assert launch(script, [], "sh", ()).python == "sh", "another interpreter may read it"
    odd = tmp_path / "tr\udcff.py"
    odd.write_text("")
    with pytest.raises(UserError, match="not UTF-8"):
        launch(odd, [], sys.executable, ())


def test_a_directory_that_has_been_removed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, gone = tmp_path / "train.py", tmp_path / "gone"
    script.write_text("")
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="has been removed"):
        launch(script, [], sys.executable, ())


@pytest.mark.parametrize("given", [{"sync": "diloco:every=50"}, {"between_nodes": "gloo"}])
def test_a_trainer_that_is_resumed_synchronises_as_before(tmp_path: Path, given: dict[str, Any]) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "trainers" / "t1"
    script.write_text("")
    folder.mkdir(parents=True)
    launched = launch(script, [], sys.executable, (), **given)
    (folder / "spec.json").write_bytes(msgspec.json.encode(launched))
    again = launch_again(tmp_path, "t1", "options")
    assert again.between_nodes == given.get("between_nodes")
    assert again.environment.get(SYNC) == (str(DiLoCo(50)) if "sync" in given else None)
