"""Answers about trainers that ended so long ago that the pool only knows how they ended."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from pilot.core.config import CoordinatorConfig
from pilot.core.errors import UserError
from pilot.core.events import TrainerCancelled, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Phase
from pilot.protocol.requests import OneTrainer, Wait
from pilot.rundir.rundir import RunDir
from pilot.service.durability.learned import Learned
from pilot.service.requests.api import Api
from pilot.service.requests.launch_store import LaunchStore
from pilot.submission.submission import Submission
from tests.unit.service.stage import LAUNCH, Stage


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """Of a pool without a server, with one open trainer; two were cancelled, the first of which is past."""
    stage = Stage(CoordinatorConfig(ended_kept=1))
    stage.post(*(TrainerSubmitted(TrainerSpec(TrainerId(name))) for name in ("first", "second", "open")))
    stage.post(*(TrainerCancelled(TrainerId(name)) for name in ("first", "second")))
    assert list(stage.core.past) == ["first"]
    view = SimpleNamespace(launches=LaunchStore(RunDir(tmp_path), "pool", None), study_store=None)
    return Api(None, None, stage, view, lambda _: None, Learned(None, "site"))


def test_who_waits_for_a_past_trainer_is_told_how_it_ended(api: Api) -> None:
    told = asyncio.run(api.wait(Wait(trainers=["second", "first"])))
    assert told.trainers == {"first": Phase.CANCELLED, "second": Phase.CANCELLED}


def test_its_name_is_not_given_again_and_it_cannot_be_cancelled(api: Api) -> None:
    with pytest.raises(UserError, match="a trainer named first already"):
        asyncio.run(api.submit(Submission(launch=LAUNCH, name="first")))
    with pytest.raises(UserError, match=r"and was cancelled: .* --replace"):
        asyncio.run(api.submit(Submission(launch=LAUNCH, name="first")))
    with pytest.raises(UserError, match="open already exists, and it has not ended"):
        asyncio.run(api.submit(Submission(launch=LAUNCH, name="open", replace=True)))
    with pytest.raises(UserError, match=r"first ended long ago \(cancelled\)"):
        asyncio.run(api.cancel(OneTrainer(trainer="first")))
