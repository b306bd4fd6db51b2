"""Which trainers are in a problem, and with how many nodes at most."""

from __future__ import annotations

from pilot.core.config import CoordinatorConfig
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import Measured, RescaleCosts
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.objective import throughput
from pilot.core.plan.pose import pose
from pilot.core.pool.blame import Blame
from pilot.core.pool.evidence import SetAside
from pilot.core.pool.losses import NO_LOSS
from pilot.core.pool.pool import ExpiringNodes, Pool
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer

A, B = TrainerId("a"), TrainerId("b")
X, Y, Z = map(NodeId, "xyz")


def test_who_has_room_for_what_it_needs_at_least_is_in_it() -> None:
    pool = Pool()
    trainers = {name: Trainer(spec := TrainerSpec(name, low, 8), Measured(spec)) for name, low in ((A, 2), (B, 1))}
    for node in (X, Y, Z):
        pool.join(node)

    def asked(reach: dict[TrainerId, int] | None = None) -> tuple[int, dict[TrainerId, int]] | None:
        order = list(trainers.values())
        config, blame = CoordinatorConfig(), Blame(pool, trainers)
        problem = pose(pool, blame, order, config, RescaleCosts(5), reach, 0.0, {}, {}, 0, ExpiringNodes(), NO_LOSS)
        return problem and (problem.nodes, {c.trainer: c.max_nodes for c in problem.candidates})

    assert asked() == (3, {A: 8, B: 8})
    assert asked({A: 2}) == (3, {A: 2}), "who can reach nothing is not in it"
    assert asked({A: 1, B: 1}) == (3, {B: 1})
    assert asked({A: 1}) is None
    trainers[A].evidence.aside = {X: SetAside(9.0, "it failed"), Y: SetAside(9.0, "it failed")}
    assert asked() == (3, {B: 8})
    pool.leave(Z, None)
    assert asked() == (2, {B: 8})


def test_a_trial_is_worth_its_weight_and_any_other_trainer_what_the_objective_says() -> None:
    pool, specs = Pool(), [TrainerSpec(name, curve=Curve.of([(1, 10.0), (4, 30.0)])) for name in (A, B)]
    for node in (X, Y, Z):
        pool.join(node)
    trainers = {spec.trainer: Trainer(spec, Measured(spec)) for spec in specs}
    problem = pose(
        pool, Blame(pool, trainers), list(trainers.values()), CoordinatorConfig(objective=throughput),
        RescaleCosts(5), None, 0.0, {}, {A: 2.0}, 0, ExpiringNodes(), NO_LOSS,
    )  # fmt: skip
    assert problem is not None
    assert [[c.value_at(nodes) for nodes in (1, 4)] for c in problem.candidates] == [[20.0, 60.0], [10.0, 30.0]]
