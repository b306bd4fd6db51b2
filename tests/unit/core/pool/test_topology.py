"""Which nodes a trainer gets and gives back if it is known which ones are close to each other."""

from __future__ import annotations

import pytest

from pilot.core.curves.measured import Measured
from pilot.core.errors import UserError
from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.assign import assign
from pilot.core.pool.pool import Pool
from pilot.core.pool.topology import Topology
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer

SUMMIT = Topology(r"([a-h])(\d+)n")


def nodes(text: str) -> list[NodeId]:
    return list(map(NodeId, text.split()))


@pytest.mark.parametrize(
    ("own", "free", "count", "expected"),
    [
        ("a01n05", "a01n01 a02n01 a02n02 b01n01", 2, "a01n01 a02n01"),  # its cabinet, then its row
        ("a01n05 b01n05", "a02n01 b01n01 b02n01", 1, "b01n01"),
        ("b01n01 b02n01 a01n01", "a02n01 b03n01", 1, "b03n01"),  # the row in which it has more nodes
        ("", "a01n01 a01n02 a01n03 a02n01 a02n02", 2, "a02n01 a02n02"),  # the other cabinet stays whole
        ("", "a01n01 b01n01 b02n01", 2, "b01n01 b02n01"),  # no cabinet has enough, this row has
        ("", "a01n01 b01n01 b02n01", 3, "b01n01 b02n01 a01n01"),  # no row has enough
        ("", "", 3, ""),
        ("login", "a01n01 login2 b01n01", 1, "a01n01"),  # a name without a location is near no other
    ],
)
def test_a_trainer_gets_the_nearest_nodes(own: str, free: str, count: int, expected: str) -> None:
    assert SUMMIT.nearest(nodes(own), nodes(free), count) == nodes(expected)


def test_the_pilot_in_a_nodes_name_is_ignored() -> None:
    assert SUMMIT.units(NodeId("a01n02.pilot-0-b07n")) == SUMMIT.units(NodeId("a01n09"))


def test_trainers_grow_into_their_own_cabinets_and_give_back_the_nodes_that_stand_alone() -> None:
    pool = Pool(topology=SUMMIT)
    for node in nodes("a01n01 a01n02 a01n03 b07n01 b07n02 b07n03"):
        pool.join(node)
    one, other = (Trainer(spec := TrainerSpec(TrainerId(name), 1, 6), Measured(spec)) for name in ("one", "other"))
    for trainer, first in ((one, "b07n02"), (other, "a01n02")):
        trainer.target = nodes(first)
        pool.owner[NodeId(first)] = trainer.id
    assign(pool, [one, other], {one.id: 2, other.id: 4})
    assert sorted(one.target) == nodes("b07n01 b07n02")
    assert sorted(other.target) == nodes("a01n01 a01n02 a01n03 b07n03")
    assign(pool, [one, other], {one.id: 2, other.id: 3})
    assert sorted(other.target) == nodes("a01n01 a01n02 a01n03")


@pytest.mark.parametrize(("pattern", "why"), [("(x", "is no regular expression"), ("x[0-9]+", "has no group")])
def test_a_pattern_that_is_none(pattern: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        Topology(pattern)
