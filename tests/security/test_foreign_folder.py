"""Commands in another user's folder: nothing there is imported."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilot.service.planning.child_process import ChildProcess
from pilot.service.settings import load_objective
from tests.pools import LIMIT_S, Pool

PLANTED = ["msgspec", "psutil", "click", "rich", "ssl", "json", "mpi4py", "torch", "h5py", "parsl", "pyomo", "pilot"]
TRAP = 'import os\nwith open({marker!r}, "a") as file:\n    print({name!r}, os.getpid(), file=file)\n'
SCRIPT = """
import json, sys, beside
print("sees", beside.HERE, json.__file__, flush=True)
sys.exit(3)
"""


class Foreign(Pool):
    """A pool whose user's current folder is full of traps; so are its daemon's and its agents'."""

    @property
    def marker(self) -> Path:
        return self.folder / "imported"

    def plant(self) -> None:
        for name in PLANTED:
            (self.folder / f"{name}.py").write_text(TRAP.format(marker=str(self.marker), name=name))


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Foreign]:
    made = Foreign(tmp_path)
    try:
        yield made
    finally:
        made.end()


def test_a_pool_that_is_brought_up_there_runs_nothing_of_it(foreign: Foreign) -> None:
    scripts = foreign.folder / "scripts"
    scripts.mkdir()
    (scripts / "script.py").write_text(SCRIPT)
    (scripts / "beside.py").write_text("HERE = 'its own folder'\n")
    foreign.plant()
    foreign.up("--pilots", "1")
    name = foreign.submit(scripts / "script.py")
    foreign.until("the script's end", lambda s: s.trainers[0].phase == "failed")
    assert "sees its own folder" in foreign.pilot("logs", name).stdout, "a script sees what lies beside it"
    foreign.pilot("explain", name)
    foreign.pilot("down")
    assert not foreign.marker.exists(), foreign.marker.read_text()


@pytest.mark.parametrize("arguments", [["doctor", "--site", "local"], ["sites", "show", "local"], ["planners"]])
def test_commands_there_run_nothing_of_it(foreign: Foreign, arguments: list[str]) -> None:
    foreign.plant()
    foreign.pilot(*arguments, check=False)
    assert not foreign.marker.exists(), foreign.marker.read_text()


def test_the_users_objective_is_found_where_the_user_is_and_takes_no_librarys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_of_this_test.py").write_text(
        "import msgspec\nHERE = msgspec.__file__\n\ndef value(trainer, nodes):\n    return float(nodes)\n"
    )
    (tmp_path / "msgspec.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.chdir(tmp_path)
    load_objective("mine_of_this_test:value")
    assert not sys.modules["mine_of_this_test"].HERE.startswith(str(tmp_path))
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    "module",
    [
        "pilot.agent.guardian",
        "pilot.agent.fork_server",
        "pilot.comm.rank",
        "pilot.service.daemon",
        "pilot.train.check.program",
    ],
)
def test_every_process_of_ours_is_started_with_a_safe_path(module: str) -> None:
    """Whatever starts them passes -P: checked in the source, since a missed process would not show up."""
    root = Path(__file__).parents[2]
    sources = [path for folder in ("pilot", "launchers") for path in (root / folder).rglob("*.py")]
    starts = [line for path in sources for line in path.read_text().splitlines() if f'"{module}"' in line]
    starts = [line for line in starts if '"-m"' in line]
    assert starts
    assert all('"-P", "-m"' in line for line in starts), starts


def test_the_solver_and_the_sampler_are_started_with_a_safe_path(monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[tuple[object, ...]]()

    async def start(*command: object, **_: object) -> None:
        started.append(command)
        raise OSError

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    for module in ("pilot.service.planning.solver_child", "pilot.service.planning.sampler_child"):
        with pytest.raises(OSError):
            asyncio.run(ChildProcess.start(module, scratch=Path()))
    assert [command[1:4] for command in started] == [
        ("-P", "-m", "pilot.service.planning.solver_child"),
        ("-P", "-m", "pilot.service.planning.sampler_child"),
    ]


def test_the_trap_works(foreign: Foreign) -> None:
    """Without -P the trap is sprung; otherwise the tests here would prove nothing."""
    foreign.plant()
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    command = [sys.executable, "-m", "json.tool", "--help"]
    subprocess.run(command, cwd=foreign.folder, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    assert foreign.marker.exists()
    assert json.__file__
