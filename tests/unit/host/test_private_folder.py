"""Folders that only we can write to."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pilot.cli import main
from pilot.host import private_folder
from pilot.rundir import rundir
from pilot.rundir.rundir import RunDir


@pytest.fixture(params=[0o000, 0o022, 0o077])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home directory in which nothing is yet, of a user with this umask."""
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    before = os.umask(request.param)
    yield tmp_path
    os.umask(before)


@pytest.mark.parametrize(
    "make",
    [
        lambda home: RunDir(home / ".local/state/pilot/local").create(),
        lambda home: private_folder.make(home / ".local/state/pilot/local"),
        lambda home: rundir.remember(home / "elsewhere"),
        lambda _: main._save_traceback(),
    ],
)
def test_what_is_made_in_the_users_home_is_the_users_alone(home: Path, make: Callable[[Path], object]) -> None:
    make(home)
    made = [path.lstat() for path in home.rglob("*") if not path.is_symlink()]
    assert {stat.S_IMODE(status.st_mode) for status in made} <= {0o600, 0o700}
    assert (home / ".local" / "state" / "pilot").is_dir()


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    private_folder.make(tmp_path / "mine")
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o755
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        private_folder.make(tmp_path / "file")


def test_errors_of_what_is_done_in_a_held_folder_have_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, private_folder.held(tmp_path) as place:
        (place / "start" / "index.h5").rename(place / "other")
    assert (caught.value.filename, caught.value.filename2) == (
        f"{tmp_path}/start/index.h5",
        f"{tmp_path}/other",
    )
    with private_folder.held(tmp_path) as place:
        assert private_folder.shown(place / "start" / "index.h5") == tmp_path / "start" / "index.h5"


def test_a_folder_that_is_held_stays_what_it_is_and_is_called_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "file").write_text("ours")
    before = set(Path("/proc/self/fd").iterdir())
    with private_folder.held(folder) as place:
        folder.rename(tmp_path / "b")
        folder.symlink_to("/")
        assert (place / "file").read_text() == "ours"
        assert private_folder.shown(place / "file") == folder / "file"
        assert private_folder.shown(place) == folder
    assert private_folder.shown(folder / "file") == folder / "file"
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_the_folder_in_which_others_may_replace_ours_is_named(tmp_path: Path) -> None:
    (inner := tmp_path / "open" / "inner").mkdir(parents=True)
    assert private_folder.open_to_others(inner) is None
    inner.parent.chmod(0o770)
    assert private_folder.open_to_others(inner) == inner.parent
    inner.parent.chmod(0o1777)
    assert private_folder.open_to_others(inner) is None, "the sticky bit"
