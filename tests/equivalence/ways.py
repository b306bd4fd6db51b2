"""The ways to run a row on ranks that are threads, and what must hold for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from pilot.train.state.progress import LineageRow
from tests.equivalence.history import Members, Rehearsing, Step, history, undisturbed
from tests.equivalence.rows import EPOCHS, Ran, Row, Tensors, in_world
from tests.unit.train.storm import End

ALONE: dict[int, Members] = {0: (0,)}

WAYS: dict[str, tuple[int, list[End]]] = {
    "one rank": (1, []),
    "two ranks": (2, []),
    "1 -> 2 -> 1": (1, [End(4, (True,), (False,), 1), End(11, (True,), (True,), 0)]),
    "one of two killed": (2, [End(5, (True,), (True,), 0, void=True)]),
}
"""The initial number of ranks, and how their generations end: a second joins in the first epoch and one leaves in the
second; one is killed in the middle of a step, which is void.
"""


@dataclass(frozen=True)
class Rank:
    """The state of a rank that was there at the end."""

    member: int
    tensors: Tensors
    ledger: Sequence[LineageRow]


@dataclass(frozen=True)
class Run:
    """``groups``: the ranks of each generation; ``rehearsals``: who rehearsed in its first step; ``bounds``: how each
    step was divided, if not evenly.
    """

    groups: Mapping[int, Members]
    rehearsals: Mapping[int, Rehearsing]
    ranks: Sequence[Rank]
    bounds: Mapping[int, Sequence[int]] = field(default_factory=dict)


def alone(row: Row) -> Run:
    """Under plain ``python``."""
    ran = _ran(row)
    return Run(ALONE, {}, [Rank(0, ran.tensors, ledger_of(ran))])


def on_threads(row: Row, way: str) -> Run:
    """One of :data:`WAYS`."""
    return in_threads(row, *WAYS[way])


def in_threads(row: Row, count: int, ends: list[End], slowness: Sequence[float] = ()) -> Run:
    """``count`` ranks at first, and how their generations end; ``slowness``: see :mod:`tests.unit.train.storm`."""
    row.prepare()
    world, ran = in_world(lambda: _ran(row), count, ends, slowness=slowness)
    members = {rank: i for i, rank in enumerate(dict.fromkeys(rank for ranks in world.generations for rank in ranks))}
    groups = {number: tuple(members[rank] for rank in ranks) for number, ranks in enumerate(world.generations, 1)}
    assert len(groups) == len(ends) + 1, "not all that was to happen happened"
    of_session = {id(world.groups[rank].training): member for rank, member in members.items()}
    rehearsals = {number: world.rehearsals.get(number, {}) for number in groups}
    ranks = [Rank(of_session[id(r.session._training)], r.tensors, ledger_of(r)) for r in ran]
    return Run(groups, rehearsals, ranks, world.bounds)


def ledger_of(ran: Ran) -> list[LineageRow]:
    """The history behind its parameters."""
    return ran.session._training.ledger.rows


_FEW_STEPS = 2


def assert_as_plain(row: Row, run: Run) -> None:
    """Each rank has bit for bit the plain loop's state after the same steps, and the ranks are equal."""
    for rank in run.ranks:
        steps = history(rank.ledger, row.batch, run.groups, run.rehearsals, per_node=row.per_node, bounds=run.bounds)
        assert sum(step.cursor_end - step.cursor for step in steps) == row.used * EPOCHS
        assert_same_bits(rank.tensors, row.plain(steps, rank.member))
        if row.kind == "equal":
            assert_same_bits(rank.tensors, run.ranks[0].tensors)


def assert_as_undisturbed(row: Row, run: Run) -> None:
    """Up to rounding, the result is that of one process alone; if it differs by design, it is not. (On processes a
    group may end before it has divided many steps, and the shares of one may have the same classes.)
    """
    expected = row.plain(undisturbed(row.used, row.batch, EPOCHS), 0)
    for rank in run.ranks:
        far = [name for name, tensor in expected.items() if not _close(rank.tensors[name], tensor, row.tolerance)]
        if row.kind == "equal":
            assert far == [], f"{far[0]}: {rank.tensors[far[0]]} is not {expected[far[0]]}"
        elif _divided(row, run, rank) > _FEW_STEPS:
            assert far, f"nothing differs: {row.different}?"


def _divided(row: Row, run: Run, rank: Rank) -> int:
    """In how many steps that counted several ranks had samples."""
    steps = history(rank.ledger, row.batch, run.groups, run.rehearsals, per_node=row.per_node)
    return sum(_is_divided(row, step) for step in steps)


def _is_divided(row: Row, step: Step) -> bool:
    parts = step.parts(row.batch * step.divided_by if row.per_node else row.batch, None)
    return len({part.rank for part in parts if part.weight} - step.rehearsing.keys()) > 1


def assert_same_bits(one: Tensors, other: Tensors) -> None:
    """Compared name by name."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor, other[name]), f"{name}: {tensor - other[name]}"


def _close(one: torch.Tensor, other: torch.Tensor, tolerance: float) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def _ran(row: Row) -> Ran:
    ran = row.script()
    assert ran is not None
    return ran
