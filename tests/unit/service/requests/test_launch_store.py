"""Launches on disk: a folder for each trainer, found by name, and only ours to read."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from pilot.core.errors import PilotError, UserError
from pilot.core.ids import TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir import trainer_folder
from pilot.rundir.rundir import RunDir
from pilot.service.requests.launch_store import LaunchStore
from pilot.submission import script_code
from tests.unit.service.stage import LAUNCH, SPEC, UID, T

HOME = "t-01234567"


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


@pytest.fixture
def store(rundir: RunDir) -> LaunchStore:
    made = LaunchStore(rundir, "pool", None)
    made.add(SPEC, LAUNCH)
    return made


@pytest.fixture
def elsewhere(rundir: RunDir, tmp_path: Path) -> Callable[[], LaunchStore]:
    """A store whose site wants checkpoints in a folder of its own, as after each restart."""
    return lambda: LaunchStore(rundir, "pool-1", str(tmp_path / "scratch"))


def test_a_launch_has_a_private_file_in_a_folder_with_its_trainers_name(store: LaunchStore, rundir: RunDir) -> None:
    folder = rundir.trainers / HOME
    assert (folder / "spec.json").stat().st_mode & 0o777 == 0o600
    assert {p.name for p in folder.iterdir()} == {"spec.json", "checkpoints", "logs", ".trainer_uid"}
    assert store.shown(SPEC).resolve() == folder, "people type its name"
    store.change(SPEC, replace(LAUNCH, checkpoints_kept=7))
    assert store.checkpoints_kept(SPEC) == 7


def test_a_trainer_of_the_same_name_has_a_folder_of_its_own(store: LaunchStore) -> None:
    first, second = store.directory(SPEC), TrainerSpec(T, uid=TrainerUid("f" * 32))
    store.add(second, LAUNCH)
    assert store.shown(second).resolve() == store.directory(second) != first
    assert trainer_folder.owner_of(first) == UID
    with pytest.raises(UserError, match="is the folder of another trainer; choose another --name"):
        store.add(TrainerSpec(TrainerId(HOME), uid=UID), LAUNCH)


def test_a_submission_that_the_disk_refuses_is_one_clear_line(store: LaunchStore, rundir: RunDir) -> None:
    other, trainers = TrainerSpec(TrainerId("u"), uid=UID), rundir.trainers
    (trainers / "u-01234567").write_text("in the way")
    with pytest.raises(PilotError, match="cannot record the submission of u"):
        store.add(other, LAUNCH)
    trainers.chmod(0)
    user = os.geteuid()
    try:
        os.seteuid(user or 65534)  # root may enter any folder
        with pytest.raises(PilotError, match=rf"cannot record the submission of u: Permission denied \({trainers}"):
            store.add(other, LAUNCH)
    finally:
        os.seteuid(user)
        trainers.chmod(0o700)


def test_a_submission_that_fails_leaves_nothing_behind(
    rundir: RunDir, elsewhere: Callable[[], LaunchStore], tmp_path: Path
) -> None:
    (tmp_path / "scratch").write_text("no folder")
    with pytest.raises(PilotError, match="cannot record the submission"):
        elsewhere().add(SPEC, LAUNCH)
    assert list(rundir.trainers.iterdir()) == []


def test_the_site_may_want_checkpoints_elsewhere(
    rundir: RunDir, elsewhere: Callable[[], LaunchStore], tmp_path: Path
) -> None:
    store = elsewhere()
    store.add(SPEC, LAUNCH)
    assert store.directory(SPEC) == tmp_path / "scratch" / "pool-1" / HOME
    assert (rundir.trainer(T) / "checkpoints").resolve() == store.directory(SPEC) / "checkpoints"
    assert (rundir.trainer(T) / "logs").resolve().is_dir()
    assert elsewhere().launch(SPEC) == LAUNCH


def test_the_code_is_in_the_sites_folder_and_its_hash_in_ours(elsewhere: Callable[[], LaunchStore]) -> None:
    store = elsewhere()
    store.add(SPEC, replace(LAUNCH, code=b"as submitted"))
    store.change(SPEC, replace(LAUNCH, code=b"as resumed"))
    (archive,) = script_code.archives_in(store.directory(SPEC))
    assert archive.read_bytes() == b"as resumed"
    assert elsewhere().launch(SPEC) == replace(LAUNCH, code_sha256=hashlib.sha256(b"as resumed").hexdigest())
