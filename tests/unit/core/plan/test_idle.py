"""Which bound leaves nodes idle, and the sentence about it."""

from pilot.core.curves.measured import Measured
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.idle import Bound, Idle, idle_by
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer


def trainer(least: int, most: int, has: int = 0) -> Trainer:
    spec = TrainerSpec(TrainerId("t"), least, most)
    made = Trainer(spec, Measured(spec))
    made.target = [NodeId(str(i)) for i in range(has)]
    return made


def test_those_beyond_the_number_of_trainers_leave_nodes_idle_that_they_could_start_on() -> None:
    runs, waits, large = trainer(1, 4, 4), trainer(1, 4), trainer(3, 4)
    assert idle_by(2, [runs], [waits, large], Bound.PARALLEL, 1) == Idle(2, Bound.PARALLEL, 1, 1)
    assert idle_by(3, [runs], [waits, large], Bound.PROBLEM, 200) == Idle(3, Bound.PROBLEM, 200, 2)
    assert idle_by(2, [runs], [large], Bound.PARALLEL, 1) is None, "it waits for nodes"
    assert idle_by(0, [runs], [waits], Bound.PARALLEL, 1) is None


def test_trainers_that_have_their_most_leave_nodes_idle_if_none_waits() -> None:
    full, larger, partly = trainer(1, 2, 2), trainer(1, 3, 3), trainer(1, 4, 3)
    assert idle_by(2, [full, larger, partly], [], Bound.PARALLEL, 9) == Idle(2, Bound.NODES, 3)
    assert idle_by(2, [partly], [], Bound.PARALLEL, 9) is None, "the plan gave it no more"
    assert idle_by(2, [full, trainer(4, 4)], [], Bound.PARALLEL, 9) is None
    assert idle_by(2, [], [], Bound.PARALLEL, 9) is None


def test_the_sentence_says_which_bound_it_is() -> None:
    assert Idle(2, Bound.PARALLEL, 10, 5).sentence() == (
        "2 nodes idle because of --max-parallel-trainers 10: 5 trainers wait"
    )
    assert Idle(1, Bound.PROBLEM, 200, 1).sentence() == (
        "1 node idle because plans include at most 200 trainers: 1 trainer waits"
    )
    assert (
        Idle(3, Bound.NODES, 8).sentence() == "3 nodes idle because of the trainers' --max-nodes (up to 8): none waits"
    )
