"""A site's ``checkpoint_dir`` to which others may write: they can rename what is in it and put theirs in its place.

The attacker is a real second user (see conftest.py). Whatever he does, each use ends in one clear line, and no file of
ours is changed elsewhere, read as ours, or run.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from pilot.agent import workdir
from pilot.agent.events_effects import WorkerEnded, WorkerMessage
from pilot.agent.workers import Workers
from pilot.checkpoint import store
from pilot.cli.main import run
from pilot.core.errors import PilotError
from pilot.core.ids import TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.doctor import storage_checks
from pilot.doctor.finding import Grade
from pilot.host import private_folder
from pilot.protocol import wire
from pilot.rundir import log_marks, trainer_folder
from pilot.rundir.rundir import RunDir
from pilot.service.durability import housekeeping
from pilot.service.requests.launch_store import LaunchStore
from pilot.site.site import Site
from pilot.submission import script_code
from pilot.submission.submission import LaunchSpec
from pilot.train import ddp
from tests.security.second_user import NAME, SecondUser

UID, OTHERS = "0123456789abcdef" * 2, "01234567" + "f" * 24
SPEC, OTHER = (TrainerSpec(TrainerId(name), uid=TrainerUid(UID)) for name in ("t", "u"))
HOME, CHECKPOINT = "t-01234567", "g000001-s00000001.h5"
CODE = b"what was submitted"
CODE_FILE = script_code.archive_in(Path(), hashlib.sha256(CODE).hexdigest()).name
LAUNCH = LaunchSpec("/s.py", "ab12", [], "/work", sys.executable, {}, code=CODE)
STATE = {"w": torch.zeros(3)}


@dataclass
class Shared:
    """A pool ``p`` with a trainer ``t`` whose files are in a folder that everybody may write to."""

    attacker: SecondUser
    rundir: RunDir
    pool: Path
    ours: Path
    launches: LaunchStore

    @property
    def checkpoints(self) -> Path:
        return self.pool / HOME / "checkpoints"

    @property
    def logs(self) -> Path:
        return self.pool / HOME / "logs"

    def swap(self, how: str) -> None:
        """The attacker renames our pool's folder and puts his own in its place, or a link to another folder of ours."""
        assert self.attacker.sh(f"mv {self.pool} {self.pool}.away").returncode == 0
        if how == "link":
            assert self.attacker.sh(f"ln -s {self.ours} {self.pool}").returncode == 0
            return
        his, secret = f"{self.pool}/{HOME}", self.ours / HOME / "checkpoints" / CHECKPOINT
        made = self.attacker.sh(
            f"umask 0; mkdir -p {his}/checkpoints {his}/logs {his}/start && echo {UID} > {his}/.trainer_uid &&"
            f" echo evil > {his}/{CODE_FILE} && mkfifo {his}/checkpoints/{CHECKPOINT} {his}/start/index.h5 &&"
            f" ln -s {secret} {his}/checkpoints/g000001-s00000002.h5 && ln -s {secret} {his}/checkpoint.pt &&"
            f" ln -s {secret} {his}/logs/n1.log && ln -s {secret} {his}/logs/n1.log.times"
        )
        assert made.returncode == 0, made.stderr

    def harmless(self) -> dict[Path, bytes]:
        """All other files of ours, which nothing here may change."""
        return {path: path.read_bytes() for path in self.ours.rglob("*") if path.is_file()}


@pytest.fixture
def shared(tmp_path: Path, open_folder: Path, attacker: SecondUser) -> Shared:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    launches = LaunchStore(rundir, "p", str(open_folder))
    launches.add(SPEC, LAUNCH)
    found = Shared(attacker, rundir, open_folder / "p", tmp_path / "ours", launches)
    store.write(found.checkpoints, 1, 1, STATE, kept=9, uid=UID)
    with open(found.logs / "n1.log", "w", opener=private_folder.private) as log:
        log.write("said\n")
    for name in ("checkpoints", "logs"):  # of a trainer with the same name and the first digits of its uid
        (found.ours / HOME / name).mkdir(parents=True)
    trainer_folder.mark(found.ours / HOME, TrainerUid(OTHERS))
    for number in (1, 2, 3):
        store.write(found.ours / HOME / "checkpoints", 1, number, STATE, kept=9, uid=OTHERS)
    for number in range(housekeeping.KEPT + 5):
        (found.ours / HOME / "logs" / f"n{number}.log").write_text("mine\n")
    return found


@pytest.fixture(params=["folder", "link"])
def swapped(shared: Shared, request: pytest.FixtureRequest) -> Iterator[Shared]:
    """The same after a swap; no file of ours may have changed at the end."""
    before = shared.harmless()
    shared.swap(request.param)
    yield shared
    assert shared.harmless() == before


# --- it works where nobody attacks ------------------------------------------------------------------------


def test_in_a_folder_to_which_all_may_write_a_pool_works_and_its_files_are_its_own(shared: Shared) -> None:
    before = os.umask(0)
    try:
        shared.launches.add(OTHER, LAUNCH)
        store.write(shared.checkpoints, 2, 2, STATE, kept=9, uid=UID)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o077 for path in [shared.pool, *shared.pool.rglob("*")]} == {0}
    loaded = store.load_newest(shared.checkpoints, 2, uid=UID)
    assert loaded is not None
    assert loaded.path == shared.checkpoints / "g000002-s00000002.h5"
    assert (shared.pool / HOME / CODE_FILE).read_bytes() == CODE
    shared.launches.remove(SPEC)
    assert [path.name for path in shared.pool.iterdir()] == ["u-01234567"]


# --- what others made first ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("umask 0; mkdir {pool}", f"belongs to user {NAME}; have it removed"),
        ("umask 0; mkdir -p {pool}/u-01234567", f"belongs to user {NAME}; have it removed"),
        ("ln -s {ours} {pool}", "it is a link"),
        ("mkfifo {pool}", "File exists"),
    ],
)
def test_a_folder_that_another_made_first_is_not_used(shared: Shared, command: str, said: str) -> None:
    pool = shared.pool.with_name("q")
    before = shared.harmless()
    assert shared.attacker.sh(command.format(pool=pool, ours=shared.ours)).returncode == 0
    launches = LaunchStore(shared.rundir, "q", str(pool.parent))
    with pytest.raises(PilotError, match=rf"cannot record the submission of u: .*{said}.*\({pool}\)"):
        launches.add(OTHER, LAUNCH)
    assert shared.harmless() == before
    assert not (shared.rundir.trainers / "u-01234567").exists(), "a submission that fails leaves nothing behind"


@pytest.mark.parametrize("place", [".", HOME, f"{HOME}/checkpoints"])
def test_a_folder_of_ours_to_which_a_group_may_write_is_not_used(shared: Shared, place: str) -> None:
    (shared.pool / place).chmod(0o770)
    with pytest.raises(PilotError, match=r"others may write to it \(mode 0770\); .*chmod go-w"):
        shared.launches.add(SPEC, LAUNCH)
        store.write(shared.checkpoints, 2, 2, STATE, kept=9, uid=UID)


# --- what is swapped while a trainer runs ------------------------------------------------------------------------


def write_next_step(shared: Shared) -> None:
    store.write_next_step(shared.checkpoints, 1, 1, b"block", UID)


def write_part(shared: Shared) -> None:
    store.write_part(shared.checkpoints, 2, 2, 0, 2, STATE, uid=UID)


def write_index(shared: Shared) -> None:
    store.write_index(shared.checkpoints, 2, 2, 2, kept=1, uid=UID)


USES: list[Callable[[Shared], object]] = [
    lambda shared: store.write(shared.checkpoints, 2, 9, STATE, kept=1, uid=UID),
    write_part,
    write_index,
    write_next_step,
    lambda shared: store.load_newest(shared.checkpoints, 9, uid=UID),
    lambda shared: store.next_step_of(shared.checkpoints / CHECKPOINT, UID),
    lambda shared: store.set_aside(shared.checkpoints, 0, UID),
    lambda shared: shared.launches.change(SPEC, LAUNCH),
    lambda shared: shared.launches.remove(SPEC),
    lambda shared: shared.launches.add(OTHER, LAUNCH),
    lambda shared: ddp.checkpoint_for_script(shared.pool / HOME / "checkpoint.pt", UID, ExitStack()),
]


@pytest.mark.parametrize("number", range(len(USES)))
def test_what_another_put_in_place_of_ours_is_not_used(swapped: Shared, number: int) -> None:
    with pytest.raises(PilotError, match=rf"belongs to user {NAME}|of another trainer|is a link") as refused:
        USES[number](swapped)
    assert str(swapped.pool) in str(refused.value)
    assert not refused.value.transient


def test_what_removes_files_in_passing_removes_nothing_there(swapped: Shared) -> None:
    store.remove_part(swapped.checkpoints / CHECKPOINT, UID)
    assert housekeeping.tidy(swapped.rundir.pilots, [(swapped.logs, UID)], []) == 0


def test_a_worker_does_not_start_there(swapped: Shared) -> None:
    launched = LaunchSpec("s.py", "", [], "/", sys.executable, {}, archive=str(swapped.pool / HOME / CODE_FILE))
    order = wire.StartWorker("t", UID, str(swapped.pool / HOME), launched, 60.0, 2)
    emitted: list[WorkerMessage | WorkerEnded] = []

    async def launch() -> None:
        home = workdir.create(Path("/tmp"))
        workers = Workers(home, emitted.append, "127.0.0.1", ["lo"], "n1")
        try:
            workers.launch(order)
        finally:
            workers.close()
            workdir.erase(home.path)

    asyncio.run(launch())
    [end] = emitted
    assert isinstance(end, WorkerEnded)
    assert str(swapped.pool / HOME) in end.tail
    assert f"belongs to user {NAME}" in end.tail or "the folder of another trainer" in end.tail


def test_what_is_open_stays_ours(shared: Shared) -> None:
    """The log of a process that runs, its marks and what is rotated out; and a checkpoint that is being written."""
    before = shared.harmless()
    path = shared.logs / "n1.log"
    with ExitStack() as stack:
        logs = stack.enter_context(trainer_folder.held(shared.logs, UID))
        log = os.open(logs / "n1.log", os.O_WRONLY | os.O_APPEND)
        stack.callback(os.close, log)
        marker = log_marks.mark_log(log, int(logs.name))
        stack.callback(setattr, log_marks, "_marker", None)
        checkpoint = ddp.checkpoint_for_script(shared.pool / HOME / "checkpoint.pt", UID, stack)
        shared.swap("folder")
        os.write(log, b"more\n")
        log_marks.copy_and_empty(marker.log)
        marker.mark()
        subprocess.run(["/bin/sh", "-c", f"echo saved > {checkpoint}"], check=True)
    away = shared.pool.with_name("p.away") / HOME
    assert (away / "logs" / "n1.log.1").read_text() == "said\nmore\n"
    assert (away / "logs" / path.name).read_text() == ""
    assert (away / "logs" / "n1.log.times").exists()
    assert (away / "checkpoint.pt").read_text() == "saved\n"
    assert shared.harmless() == before


@pytest.mark.parametrize(
    "command",
    [
        ["logs", "t"],
        ["checkpoint", "ls", "t"],
        ["checkpoint", "verify", "t"],
        ["checkpoint", "show", "t"],
        ["checkpoint", "export", "t", "/dev/null/t.pt"],
    ],
)
def test_a_command_says_whose_folder_it_is(
    swapped: Shared, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, "--run-dir", str(swapped.rundir.root)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert str(swapped.pool / HOME) in line
    assert f"belongs to user {NAME}" in line or "the folder of another trainer" in line


@pytest.mark.parametrize("how", ["folder", "link"])
def test_nothing_starts_from_there(shared: Shared, how: str) -> None:
    """Swapped after ``submit --from t`` has looked at the checkpoint, before the coordinator takes it."""
    file = str(shared.rundir.trainer(TrainerId("t")) / "checkpoints" / CHECKPOINT)
    shared.launches.add(OTHER, LAUNCH, [file])
    start = trainer_folder.start_of(shared.pool / "u-01234567")
    assert start.samefile(shared.checkpoints / CHECKPOINT)
    local = LaunchStore(shared.rundir, "q", None)
    shared.swap(how)
    with pytest.raises(PilotError, match=f"belongs to user {NAME}|of another trainer"):
        local.add(TrainerSpec(TrainerId("v"), uid=TrainerUid(UID)), LAUNCH, [file])


def test_a_start_from_a_file_near_the_root(shared: Shared) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp", suffix=".h5") as given:
        shared.launches.add(OTHER, LAUNCH, [given.name])
    assert (shared.pool / "u-01234567" / "start" / "index.h5").exists()


def test_a_start_from_another_users_file_is_a_copy(shared: Shared) -> None:
    """He may change his file later, and the link that a user names, too."""
    his = shared.pool.with_name("his.h5")
    assert shared.attacker.sh(f"umask 0; echo good > {his}").returncode == 0
    shared.launches.add(OTHER, LAUNCH, [str(his)])
    assert shared.attacker.sh(f"echo evil > {his}").returncode == 0
    start = trainer_folder.start_of(shared.pool / "u-01234567")
    assert (start.read_text(), start.stat().st_uid) == ("good\n", os.geteuid())


# --- pilot doctor ------------------------------------------------------------------------


def findings(shared: Shared) -> list[tuple[Grade, str]]:
    site = Site(name="s", scheduler="local", checkpoint_dir=str(shared.pool.parent))
    found = storage_checks.storage(site, shared.rundir.root)
    return [(one.grade, one.seen) for one in found if one.check == "checkpoint directory"]


def test_doctor_says_that_others_may_write_there(shared: Shared) -> None:
    def warned() -> bool:
        return any(grade is Grade.WARN and "others may rename" in seen for grade, seen in findings(shared))

    assert warned()
    shared.pool.parent.chmod(0o1777)
    assert not warned()


@pytest.mark.parametrize("how", ["folder", "link"])
def test_doctor_fails_where_a_pools_folder_is_another_users(shared: Shared, how: str) -> None:
    assert all(grade is not Grade.FAIL for grade, _ in findings(shared))
    shared.swap(how)
    [said] = [seen for grade, seen in findings(shared) if grade is Grade.FAIL]
    assert str(shared.pool) in said
    assert f"belongs to user {NAME}" in said or "is a link" in said
