"""Another user who can write where the site keeps trainers' folders cannot have a worker run other code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pilot.client.launching import launch, with_code
from pilot.core.commands import StartWorker
from pilot.core.errors import REFUSAL
from pilot.core.ids import NodeId, TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.rundir.rundir import RunDir
from pilot.service.agents.effects import Effects
from pilot.service.agents.pending import PendingCommands
from pilot.service.requests.launch_store import LaunchStore
from pilot.site.site import Site
from tests.integration.test_workers import bench
from tests.security.second_user import SecondUser

TRAINER = TrainerSpec(TrainerId("t"), uid=TrainerUid("0123456789abcdef" * 2))

SWAP = """
import os, zipfile
code, script = {code!r}, {script!r}
pool = os.path.dirname(os.path.dirname(code))
os.rename(pool, pool + ".was")
os.makedirs(os.path.dirname(code))
with zipfile.ZipFile(code, "w") as archive:
    archive.writestr(script.lstrip("/"), "import os; raise SystemExit(f'runs as {{os.getuid()}}')")
for place, _, names in os.walk(pool):
    os.chmod(place, 0o777)
"""


@pytest.fixture
def order(open_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> wire.StartWorker:
    """What an agent is told of a script that was submitted while the site's folder was not open to others."""
    (tmp_path / "train.py").write_text("raise SystemExit('runs as submitted')\n")
    monkeypatch.chdir(tmp_path)
    open_folder.chmod(0o755)
    made = ordered(tmp_path / "train.py", RunDir(tmp_path / "run"), str(open_folder))
    open_folder.chmod(0o777)
    return made


def ordered(
    script: Path, rundir: RunDir, checkpoint_dir: str | None, environment: tuple[str, ...] = ()
) -> wire.StartWorker:
    """Submit ``script``; returns what an agent is told."""
    launched, _ = with_code(launch(script, [], sys.executable, environment))
    rundir.create()
    store = LaunchStore(rundir, "pool", checkpoint_dir)
    store.add(TRAINER, launched)
    sent: list[Any] = []
    core = SimpleNamespace(trainers={TRAINER.trainer: SimpleNamespace(spec=TRAINER)})
    driver: Any = SimpleNamespace(core=core, pending=PendingCommands())
    nobody: Any = None
    site = Site(name="s", scheduler="local")
    effects = Effects(site, driver, store, nobody, nobody, lambda _, message, __: sent.append(message), nobody)
    effects.perform(StartWorker(TRAINER.trainer, NodeId("n"), ""))
    return sent[0]


def last_word(order: wire.StartWorker, folder: Path, meanwhile: Callable[[], None] = lambda: None) -> str:
    """What the script of a real worker ended with. ``meanwhile`` happens after the agent has looked at its folder, and
    before there is a process that could read the code: its fork server has not started yet.
    """

    async def play() -> str:
        async with bench(folder) as it:
            it.workers.launch(order)
            meanwhile()
            return (await it.end()).tail.strip()

    return asyncio.run(play())


def test_the_submitted_code_is_run(order: wire.StartWorker, tmp_path: Path) -> None:
    assert last_word(order, tmp_path) == "runs as submitted"


def test_links_that_lead_elsewhere_by_now_lead_to_what_was_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where releases are deployed: the script's folder and one of PYTHONPATH are links to the current one."""
    for place in ("app", "lib"):
        for release in ("r1", "r2"):
            (tmp_path / place / release).mkdir(parents=True)
            (tmp_path / place / release / f"of_{place}.py").write_text(f"RELEASE = {release!r}\n")
            (tmp_path / place / release / "train.py").write_text(
                f"import of_app, of_lib\nraise SystemExit(f'{release} {{of_app.RELEASE}} {{of_lib.RELEASE}}')\n"
            )
        (tmp_path / place / "current").symlink_to("r1")
    monkeypatch.chdir(tmp_path)
    script, environment = tmp_path / "app" / "current" / "train.py", (f"PYTHONPATH={tmp_path}/lib/current",)
    order = ordered(script, RunDir(tmp_path / "run"), None, environment)
    assert last_word(order, tmp_path) == "r1 r1 r1"
    for place in ("app", "lib"):
        (tmp_path / place / "current").unlink()
        (tmp_path / place / "current").symlink_to("r2")
    assert last_word(order, tmp_path) == "r1 r1 r1"


def test_code_swapped_by_another_user_is_refused_in_one_line(
    order: wire.StartWorker, tmp_path: Path, attacker: SecondUser
) -> None:
    code, script = order.launch.archive, str(tmp_path / "train.py")

    def swap() -> None:
        swapped = attacker.python(SWAP.format(code=code, script=script))
        assert swapped.returncode == 0, swapped.stderr
        assert Path(code).stat().st_uid == attacker.uid

    told = last_word(order, tmp_path, swap)
    [log] = Path(f"{Path(code).parents[1]}.was").glob("*/logs/*.log")  # where it went with our folder
    said = told or log.read_text().strip()
    assert said.startswith(f"{REFUSAL}the trainer's copy of its code, {code}, is not what was submitted"), said
    assert "\n" not in said
