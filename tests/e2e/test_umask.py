"""File ownership: a script's files get its user's umask, ours are private; checkpoints are named after the trainer."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.acts import script
from tests.pools import Pool


class Shared(Pool):
    """A pool whose run directory's parents do not exist yet, and whose checkpoints are where everybody may write."""

    @property
    def state(self) -> Path:
        return self.folder / "home" / ".local" / "state"

    @property
    def run_dir(self) -> Path:
        return self.state / "pilot" / "e2e"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"XDG_STATE_HOME": str(self.state)}

    def site(self) -> str:
        return super().site().replace("scheduler=", f"checkpoint_dir={str(self.scratch)!r}, scheduler=")


@pytest.fixture(params=[0o000, 0o077])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shared]:
    """Everything is started with this umask."""
    pool = Shared(tmp_path)
    pool.scratch.mkdir()
    pool.scratch.chmod(0o777)
    before = os.umask(request.param)
    try:
        yield pool
    finally:
        pool.end()
        os.umask(before)


def modes(folder: Path) -> set[int]:
    found = [path for path in (folder, *folder.rglob("*")) if not path.is_symlink()]
    return {stat.S_IMODE(path.stat().st_mode) for path in found}


def test_a_script_s_files_are_the_user_s_and_its_checkpoints_go_by_its_name(shared: Shared) -> None:
    pool = shared
    made = script(pool, after='Path("made.txt").write_text("result")', epochs=2)
    pool.up()
    pool.agent()
    before = os.umask(0o027)
    try:
        pool.pilot("submit", "--name", "mine", made)
    finally:
        os.umask(before)
    pool.pilot("wait", "mine")
    assert stat.S_IMODE((pool.folder / "made.txt").stat().st_mode) == 0o640
    [home] = pool.scratch.iterdir()
    assert modes(home) == {0o600, 0o700}
    assert len(list(home.rglob("*.h5"))) > 0
    assert modes(pool.folder / "home" / ".local") == {0o600, 0o700}
    listed = pool.pilot("checkpoint", "ls", "mine").stdout.splitlines()
    assert listed
    assert all("trainers/mine/checkpoints/" in line for line in listed)
    pool.pilot("down")
    assert pool.pilot("checkpoint", "verify", "mine").stdout.endswith("ok\n"), "also when the pool is down"
    unknown = pool.pilot("checkpoint", "ls", "yours", check=False)
    assert (unknown.returncode, "no trainer of this name" in unknown.stderr) == (2, True)
