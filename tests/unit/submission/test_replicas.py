"""Replicas of several nodes: what cannot be submitted."""

from __future__ import annotations

import msgspec
import pytest

from pilot.core.errors import UserError
from pilot.core.ids import NO_UID, TrainerId
from pilot.site.site import Site
from pilot.submission.seldom import SYNC
from pilot.submission.submission import Submission, with_between
from tests.unit.service.stage import LAUNCH

SITE = Site(name="cpus", scheduler="slurm")


def test_mpi_cannot_sum_their_shards() -> None:
    for launch in (LAUNCH, msgspec.structs.replace(LAUNCH, between_nodes="mpi")):
        with pytest.raises(UserError, match="--nodes-per-replica needs --between-nodes gloo"):
            with_between(launch, SITE, 2)
    assert with_between(msgspec.structs.replace(LAUNCH, between_nodes="gloo"), SITE, 2).between_nodes == "gloo"


def test_they_sum_in_each_step() -> None:
    for launch, option in (
        (msgspec.structs.replace(LAUNCH, ddp=True), "--ddp"),
        (msgspec.structs.replace(LAUNCH, environment={SYNC: "diloco"}), "--sync"),
    ):
        with pytest.raises(UserError, match=f"--nodes-per-replica cannot be combined with {option}"):
            Submission(launch=launch, nodes_per_replica=2).spec(TrainerId("t"), NO_UID)
