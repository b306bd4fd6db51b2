"""Who is parked keeps the nodes that nobody else needs."""

from __future__ import annotations

from pilot.core.assign import assign
from pilot.core.evidence import SetAside
from pilot.core.ids import NodeId, TrainerId
from pilot.core.measured import Measured
from pilot.core.pool import Pool
from pilot.core.spec import TrainerSpec
from pilot.core.trainer import Trainer, Worker, WorkerPhase

X, Y, Z = map(NodeId, "xyz")


def test_a_choosy_trainer_that_finds_a_free_node_takes_none_of_who_is_parked() -> None:
    parked, choosy = (
        Trainer(spec := TrainerSpec(TrainerId(name), low, 4), Measured(spec)) for name, low in (("parked", 2), ("g", 1))
    )
    for free, kept in (((Y,), [X]), ((), [])):
        pool = Pool()
        for node in (X, *free):
            pool.join(node)
        pool.owner[X] = pool.occupant[X] = parked.id
        parked.target, parked.workers = [X], {X: Worker(0, WorkerPhase.READY, has_state=True)}
        choosy.target, choosy.evidence.aside = [], {Z: SetAside(9.0, "it failed")}
        assign(pool, [parked, choosy], {parked.id: 0, choosy.id: 1})
        assert (parked.target, choosy.target) == (kept, [*free] or [X])
