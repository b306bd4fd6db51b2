"""Answers about trainers that ended so long ago that the pool only knows how they ended, and about nodes without
pilots."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pilot.core.config import CoordinatorConfig
from pilot.core.errors import UserError
from pilot.core.events import Event, TrainerCancelled, TrainerSubmitted
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import KeeperStatus, SetAsideStatus
from pilot.protocol.requests import OneTrainer, Resumption, SomeNodes, Wait
from pilot.rundir.rundir import RunDir
from pilot.service.durability.learned import Learned
from pilot.service.requests.api import Api
from pilot.service.requests.launch_store import LaunchStore
from pilot.site.site import Site
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
    return Api(None, None, stage, view, lambda _: None, lambda _: None, Learned(None, "site"))


def test_a_node_without_pilots_is_cleared_by_its_name(tmp_path: Path) -> None:
    aside = SetAsideStatus(node="n2", trainer=None, left_s=600.0, reason="a pilot failed there: exit 1")
    about = SimpleNamespace(keeper=KeeperStatus(set_aside=[aside]))
    launches = LaunchStore(RunDir(tmp_path), "pool", None)
    view = SimpleNamespace(launches=launches, study_store=None, about=lambda: about)
    used: list[str] = []
    api = Api(None, None, Stage(CoordinatorConfig()), view, lambda _: None, used.append, Learned(None, "site"))
    with pytest.raises(UserError, match="no node named 'n3'"):
        asyncio.run(api.clear(SomeNodes(nodes=["n2", "n3"])))
    assert used == []
    assert asyncio.run(api.clear(SomeNodes(nodes=["n2"]))).nodes == used == ["n2"]


def test_a_type_of_nodes_that_the_site_does_not_have_is_refused(tmp_path: Path) -> None:
    site = Site(name="mixed", scheduler="slurm", node_types={"a100": {}, "a40": {}})
    view = SimpleNamespace(launches=LaunchStore(RunDir(tmp_path), "pool", None), study_store=None)
    stage = Stage(CoordinatorConfig())
    api = Api(site, None, stage, view, lambda _: None, lambda _: None, Learned(None, "site"))
    with pytest.raises(UserError, match="site mixed has no type of nodes 'h100'; there are: a100, a40"):
        asyncio.run(api.submit(Submission(launch=LAUNCH, types=("a100", "h100"))))


def test_a_way_to_sum_that_does_not_work_at_the_site_is_refused(tmp_path: Path) -> None:
    site = Site(name="gpus", scheduler="slurm", ranks_per_node=2, node_fabric="shared-memory")
    view = SimpleNamespace(launches=LaunchStore(RunDir(tmp_path), "pool", None), study_store=None)
    stage = Stage(CoordinatorConfig())
    api = Api(site, None, stage, view, lambda _: None, lambda _: None, Learned(None, "site"))
    why = '^--between-nodes gloo: at this site node_fabric: shared-memory does not work with between_nodes="gloo"; rem'
    with pytest.raises(UserError, match=why):
        asyncio.run(api.submit(Submission(launch=replace(LAUNCH, between_nodes="gloo"))))


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


def test_a_trainer_that_has_not_ended_is_resumed_if_it_ran_out_of_memory_on_some_type(api: Api) -> None:
    asked = Resumption(trainer="open", launch=LAUNCH, budget_node_hours=2.0)
    with pytest.raises(UserError, match="open has not ended"):
        asyncio.run(api.resume(asked))
    trainer = api._driver.core.trainers[TrainerId("open")]
    trainer.excluded = {"a40": "it ran out of memory on a40"}

    async def decide(event: Event, _what: str) -> None:
        api._driver.post(event)

    api._decide = decide  # type: ignore[method-assign]  # without a disk
    assert asyncio.run(api.resume(asked)).trainer == "open"
    assert (trainer.excluded, trainer.usage.budget_s) == ({}, 7200.0)
