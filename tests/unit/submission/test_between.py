"""How the nodes of a trainer sum stays what it was at the submission."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pilot.core.errors import UserError
from pilot.site.site import Site
from pilot.submission.submission import with_between
from tests.unit.service.stage import LAUNCH

SITE = Site(name="gpus", scheduler="slurm", between_nodes="nccl")


def test_a_trainer_keeps_what_the_site_had() -> None:
    assert with_between(LAUNCH, SITE).between_nodes == "nccl"
    assert with_between(with_between(LAUNCH, SITE), Site(name="gpus", scheduler="slurm")).between_nodes == "nccl"


def test_the_user_decides() -> None:
    assert with_between(replace(LAUNCH, between_nodes="mpi"), SITE).between_nodes == "mpi"


def test_a_script_for_torchrun_sums_by_itself() -> None:
    assert with_between(replace(LAUNCH, ddp=True), SITE).between_nodes is None


def test_what_the_site_cannot_do_is_refused() -> None:
    here = Site(name="gpus", scheduler="slurm", ranks_per_node=2, node_fabric="shared-memory")
    with pytest.raises(UserError, match=r"^--between-nodes gloo: at this site node_fabric: shared-memory"):
        with_between(replace(LAUNCH, between_nodes="gloo"), here)
