"""A pool's status with one failed trainer, as the coordinator would report it; fields that no test reads are blank."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from pilot.core.curves.curve_model import Estimate
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.trainer import Phase
from pilot.protocol.pool_status import (
    DecisionStatus,
    KeeperStatus,
    NodeStatus,
    PoolStatus,
    TrainerStatus,
    UtilisationStatus,
)

Kind = TypeVar("Kind", bound=msgspec.Struct)


def filled(kind: type[Kind], **given: Any) -> Kind:
    """A struct whose fields that are not ``given`` are None, 0, false or empty, by their types."""
    hints = get_type_hints(kind)
    return kind(**{name: given[name] if name in given else _blank(hints[name]) for name in kind.__struct_fields__})


def _blank(hint: Any) -> Any:
    if type(None) in get_args(hint):
        return None
    plain = get_origin(hint) or hint
    if issubclass(plain, msgspec.Struct):
        return filled(plain)
    return next(iter(plain)) if issubclass(plain, Enum) else plain()


TRAINER = filled(
    TrainerStatus,
    trainer="vit",
    phase=Phase.FAILED,
    reason="it raised\n(log: " + "/a/long/path" * 20 + ")",
    directory="/run/trainers/vit",
    nodes=["n1"],
    target=["n1", "n2"],
    warming=["n2"],
    min_nodes=1,
    max_nodes=4,
    generation=3,
    step=40,
    epoch=1,
    epochs=3,
    samples=1280,
    measured_samples_per_s={1: 100.0, 10: 900.0},
    scaling=[Estimate(1, 100.0, 0.02, measured=True), Estimate(2, 195.0, 0.04, measured=False)],
    metrics={"accuracy": 0.9, "loss": 0.25, "learning_rate": 1e-3},
    elapsed_s=98.0,
    submitted_s=1.0,
    started_s=2.0,
    remarks=["a remark"],
    check=ProofState.PASSED,
    check_text="checked: 18 steps train the same",
)
STATUS = filled(
    PoolStatus,
    coordinator="polaris-1",
    site="polaris",
    run_dir="/run",
    up=True,
    now_s=100.0,
    node_seconds=60.0,
    ended_kept=200,
    charge_factor=1.0,
    pool=[filled(NodeStatus, node="n1", trainer="vit", leaving=True, set_aside=True, joined_s=40.0)],
    trainers=[TRAINER],
    decisions=[DecisionStatus(at_s=88.0, text="vit gets 2 nodes by plan, had 1")],
    utilisation=filled(UtilisationStatus, eq_nodes=0.6),
    keeper=filled(
        KeeperStatus,
        scheduler="slurm",
        wanted_nodes=4,
        pending=3,
        running=1,
        waited_s=200.0,
        leaving=1,
        suspended=1,
        waits_for="Q: Not Running: Queue not started.",
        endings={"preempted": 2},
        held_back="waiting while another job takes nodes",
    ),
    remarks=["the pool is up again; it was down for 10.8 s"],
    warnings=["the scheduler does not answer"],
)
