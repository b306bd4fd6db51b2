"""Facts in the folders of trainers that a damaged journal lacks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot.core.coordinator import Coordinator
from pilot.core.events import TrainerSubmitted
from pilot.core.ids import Generation, TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir.rundir import RunDir
from pilot.service.durability.restore import lost_generations, lost_trainers
from pilot.service.requests.launch_store import LaunchStore
from tests.unit.service.stage import LAUNCH


def spec(name: str, digit: str) -> TrainerSpec:
    return TrainerSpec(TrainerId(name), uid=TrainerUid(digit * 32))


@pytest.fixture
def rundir(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def test_the_highest_generation_is_that_of_any_file_or_of_the_journal(rundir: RunDir) -> None:
    core, launches = Coordinator(), LaunchStore(rundir, "pool", None)
    for name, digit in (("a", "1"), ("b", "2"), ("c", "3")):
        launches.add(spec(name, digit), LAUNCH)
        core.handle(0.0, TrainerSubmitted(spec(name, digit)))
    folder = rundir.trainer(TrainerId("a")) / "checkpoints"
    for file in (
        "g000002-s00000007.h5",
        "g000003-s00000009.part0of2.h5",
        "g000001-s00000001.next",
        "g9.h5",
        f"g{9**30}-s00000001.h5",
        "x",
    ):
        (folder / file).touch()
    named = {TrainerId("b"): Generation(4), TrainerId("gone"): Generation(8)}
    assert lost_generations(core, launches, named) == (("a", 3), ("b", 4))
    for file in (".g000005-s00000009.h5.12-34@host.tmp", "g000006-s00000009.h5.doubtful"):
        (folder / file).touch()
        assert lost_generations(core, launches, {}) == (("a", int(file.partition("-")[0].strip(".g"))),)


def test_a_folder_that_cannot_be_read_now_is_no_reason_not_to_start(
    rundir: RunDir, caplog: pytest.LogCaptureFixture
) -> None:
    core, launches = Coordinator(), LaunchStore(rundir, "pool", None)
    launches.add(spec("a", "1"), LAUNCH)
    core.handle(0.0, TrainerSubmitted(spec("a", "1")))
    folder = rundir.trainer(TrainerId("a")) / "checkpoints"
    folder.rmdir()
    folder.touch()
    assert lost_generations(core, launches, {}) == ()
    assert "checkpoints: Not a directory" in caplog.text


def test_a_trainer_is_named_that_only_its_folder_knows(rundir: RunDir) -> None:
    core, launches = Coordinator(), LaunchStore(rundir, "pool", None)
    for name, digit in (("kept", "1"), ("my-net", "2"), ("earlier", "3")):
        launches.add(spec(name, digit), LAUNCH)
    core.handle(0.0, TrainerSubmitted(spec("kept", "1")))
    began_s = (rundir.trainer(TrainerId("kept")) / "spec.json").stat().st_mtime
    of_an_earlier_pool = rundir.trainer(TrainerId("earlier")) / "spec.json"
    os.utime(of_an_earlier_pool, (began_s - 1, began_s - 1))
    told = lost_trainers(rundir, core, began_s)
    assert ": my-net-22222222; " in told
    assert "\n" not in told
    core.handle(1.0, TrainerSubmitted(spec("my-net", "4")))
    assert lost_trainers(rundir, core, began_s) == "", "it was submitted again"
