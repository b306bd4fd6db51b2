"""Settings of seldom-synchronised training: as scripts, ``--sync`` and ``pilot.submit`` give them."""

from __future__ import annotations

from typing import Any

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.trainer.proof import Proof, ProofState
from pilot.core.trainer.spec import Checking, TrainerSpec
from pilot.site.site import Site
from pilot.submission.seldom import SYNC, DiLoCo, LocalSGD, parsed
from pilot.submission.submission import LaunchSpec, with_check


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("diloco:every=50", DiLoCo(50)),
        ("DiLoCo:every=50, wire=int8", DiLoCo(50, wire="int8")),
        (
            "diloco:every=9,outer_lr=1,nesterov=false,inner=copy",
            DiLoCo(9, 1, nesterov=False, inner="copy"),
        ),
        ("localsgd:every=20", LocalSGD(20)),
        ("localsgd:every=20,wire=bfloat16", LocalSGD(20, wire="bfloat16")),
    ],
)
def test_settings_can_be_written_as_an_option(text: str, settings: DiLoCo) -> None:
    assert parsed(text) == settings
    assert parsed(str(settings)) == settings


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "give diloco:every=N or localsgd:every=N"),
        ("50", "give diloco:every=N"),
        ("diloco", "give diloco:every=N"),
        ("adam:every=50", "give diloco:every=N"),
        ("diloco:wire=int8", "give diloco:every=N"),
        ("diloco:every=0", "every must be a whole number of steps of at least 1, got 0"),
        ("diloco:every=2.5", "every must be a whole number"),
        ("diloco:every=many", "every must be a whole number"),
        ("diloco:every=5,outer_lr=0", "outer_lr must be a number above 0"),
        ("diloco:every=5,outer_lr=nan", "outer_lr must be a number above 0"),
        ("diloco:every=5,momentum=1", "momentum must be a number of at least 0 and below 1"),
        ("diloco:every=5,nesterov=1", "nesterov must be True or False"),
        ("diloco:every=5,wire=int4", "wire must be one of float32, bfloat16, int8; got 'int4'"),
        ("diloco:every=5,inner", "give each NAME=VALUE once"),
        ("diloco:every=5,every=3", "give each NAME=VALUE once"),
        ("localsgd:every=5,momentum=0.9", "'momentum' is none of every, wire, inner"),
        ("diloco:every=5,inner=", "inner must be one of fresh, copy; got ''"),
        ("diloco:every=5,lr=1", "'lr' is none of every, outer_lr"),
    ],
)
def test_a_mistake_is_told_in_one_line(text: str, why: str) -> None:
    with pytest.raises(UserError) as error:
        parsed(text)
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_a_trainer_submitted_with_it_is_not_checked_and_says_why() -> None:
    def checked(environment: dict[str, str], asked: Checking | None) -> TrainerSpec:
        launch = LaunchSpec("/s.py", "0" * 64, [], "/", "/usr/bin/python3", environment)
        site: Any = Site(name="s", scheduler="local")
        return with_check(TrainerSpec(TrainerId("t")), asked, launch, site)

    assert Proof.of(checked({}, None)).state is ProofState.WAITING
    proof = Proof.of(checked({SYNC: "diloco:every=50"}, None))
    assert proof.text == "unchecked: its nodes train by themselves between two exchanges (--sync)"
    assert not proof.keeps_to_one(Checking.AUTO)
    with pytest.raises(UserError, match="--check require: its nodes train by themselves"):
        checked({SYNC: "diloco:every=50"}, Checking.REQUIRE)
