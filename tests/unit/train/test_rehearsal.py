"""Who rehearses in a group's first step, with which samples, and which gradients count as different."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pilot.train.alike.newcomers import Newcomers
from pilot.train.data.rehearsal import Rehearsal
from pilot.train.data.sampler import Batching
from pilot.train.gradients.sketch import Sketch, Sketched, folded
from pilot.train.state.state_transfer import NOTHING, Holding, Standing, who_spreads
from pilot.train.steps.comparison import differences_in

NEW = Holding(NOTHING, 0, 1)
WORKING, KNOWN = (Holding(3, 10, 1, standing=one) for one in (Standing.NOT_COMPARED, Standing.COMPARED))


def newcomers(*table: Holding, per_node: int = 1) -> Newcomers:
    return Newcomers.of(table, who_spreads(table), per_node)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([KNOWN, KNOWN], Newcomers(0, ())),
        ([NEW, KNOWN, NEW, KNOWN], Newcomers(1, (0, 2), frozenset({0, 2}))),
        ([NEW, NEW, NEW], Newcomers(0, (1, 2))),
        # Its group broke before the first step with the state that it has since.
        ([Holding(3, 10, 1), NEW, KNOWN], Newcomers(2, (1, 0), frozenset({0, 1}))),
        ([Holding(3, 10, 1), Holding(3, 10, 1)], Newcomers(0, (1,))),
        # One that has missed steps is as new as any.
        ([Holding(2, 8, 1, standing=Standing.COMPARED), KNOWN], Newcomers(1, (0,), frozenset({0}))),
        # One that was not compared is no reference while there is another, and has buffers of its own by now.
        ([WORKING, NEW, KNOWN], Newcomers(2, (1,), frozenset({0, 1}))),
        ([WORKING, NEW, WORKING], Newcomers(0, (1,))),
    ],
)
def test_newcomers_are_those_that_took_part_in_no_step_with_their_state(
    table: list[Holding], expected: Newcomers
) -> None:
    assert newcomers(*table) == expected


def test_a_node_is_new_if_one_of_its_processes_is() -> None:
    assert newcomers(KNOWN, KNOWN, KNOWN, NEW, NEW, NEW, per_node=2) == Newcomers(0, (1, 2), frozenset({1, 2}))


@pytest.mark.parametrize(
    ("size", "parts", "rehearsing"),
    [(3, 1, {0, 2}), (3, 2, {0}), (3, 3, set()), (3, 4, set()), (3, 0, set())],
)
def test_nobody_gets_more_samples_than_before(size: int, parts: int, rehearsing: set[int]) -> None:
    rehearsal = Newcomers(1, (0, 2)).rehearsal(size, 1, parts)
    assert (rehearsal.rehearsing if rehearsal is not None else set()) == rehearsing


@given(st.data())
def test_the_others_divide_all_samples_and_who_rehearses_has_the_references(data: st.DataObject) -> None:
    per_node, nodes = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 6))
    reference, *others = data.draw(st.permutations(range(nodes)))
    new = tuple(others[: data.draw(st.integers(1, nodes - 1))])
    batching = data.draw(
        st.sampled_from([Batching(total=17, ranks_per_node=per_node), Batching(per_node=5, ranks_per_node=per_node)])
    )
    rehearsal = Newcomers(reference, new).rehearsal(nodes * per_node, per_node, per_node)
    assert rehearsal is not None
    shares = []
    for rank in range(nodes * per_node):
        share = batching.share(20, 100, rehearsal.part(rank), rehearsal.parts)
        shares.append(rehearsal.counted(share, rank))
    working = [rank for rank in range(nodes * per_node) if not rehearsal.rehearses(rank)]
    used = [i for r in working if shares[r].samples for start, stop in shares[r].batches for i in range(start, stop)]
    assert sorted(used) == list(range(shares[0].cursor, shares[0].cursor_end))
    for rank, share in enumerate(shares):
        of = rehearsal.stands_for(rank)
        assert of == rank or (of in working and of // per_node == reference and of % per_node == rank % per_node)
        assert share.batches == shares[of].batches
        assert share.weight(0) == 0.0 or not rehearsal.rehearses(rank)


ONE = nn.Parameter(torch.zeros(200))
OTHER = nn.Parameter(torch.zeros(3, 70))


def sketched(one: torch.Tensor | None, other: torch.Tensor | None = None) -> Sketched:
    sketch = Sketch()
    sketch.weight = 2.0
    sketch.add([ONE, OTHER], [one, other])
    return sketch.of({"one": ONE, "other": OTHER})


def differences(*sketches: Sketched) -> list[tuple[int, str]]:
    others = frozenset(range(1, len(sketches)))
    rehearsal = Rehearsal(nodes=len(sketches), per_node=1, reference=0, rehearsing=others)
    return list(differences_in(rehearsal, sketches))


def test_a_difference_beyond_rounding_is_found_and_the_parameter_named() -> None:
    torch.manual_seed(3)
    one, other = torch.randn(200), torch.randn(3, 70)
    near, far = other + 1e-4 * torch.randn(3, 70), other + 0.1 * torch.randn(3, 70)
    found = differences(sketched(one, other), sketched(one, near), sketched(one, far), sketched(-one, other))
    assert found == [
        (2, "rank 2 computes another gradient of other than rank 0"),
        (3, "rank 3 computes another gradient of one than rank 0"),
    ]


ONES, OTHERS, INFINITE = torch.ones(200), torch.ones(3, 70), torch.full((200,), torch.inf)


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ((ONES, OTHERS), (ONES,), True),
        ((ONES,), (ONES, OTHERS), True),
        ((INFINITE,), (INFINITE,), False),
        ((ONES,), (INFINITE,), True),
        ((None,), (None,), False),
    ],
)
def test_a_gradient_that_only_one_has_or_that_overflows_on_one_is_a_difference(
    one: tuple[Any, ...], other: tuple[Any, ...], differ: bool
) -> None:
    assert len(differences(sketched(*one), sketched(*other))) == differ
    assert differences(sketched(None), {}) == []


def test_folded_sketches_are_small_and_differ_where_one_of_many_does() -> None:
    torch.manual_seed(4)
    rows = {f"layer.{i}": torch.randn(4).tolist() for i in range(3000)}
    small, other = folded(rows), folded(rows | {"layer.7": [0.0, 0.0, 0.0, 40.0]})
    assert len(small) == 16
    assert differences(small, small) == []
    assert len(differences(small, other)) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("shape", [(), (1,), (61,), (5, 61, 2), (0,)])
def test_a_sketch_is_linear_and_depends_on_all_numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    parameter = nn.Parameter(torch.zeros(shape, dtype=dtype))

    def of(gradient: torch.Tensor) -> list[float]:
        sketch = Sketch()
        sketch.weight = 1.0
        sketch.add([parameter], [gradient])
        return sketch.of({"p": parameter})["p"]

    ones = torch.ones(shape, dtype=dtype)
    total = torch.tensor(of(ones))
    single = torch.zeros(4)
    for i in range(ones.numel()):
        unit = torch.zeros(ones.numel(), dtype=dtype)
        unit[i] = 1
        row = torch.tensor(of(unit.view(shape)))
        assert row.abs().eq(1).all()
        single += row
    assert torch.equal(total, single)
    assert torch.equal(torch.tensor(of(2 * ones)), 2 * total)


def test_the_norm_of_a_sketch_is_about_that_of_the_gradient() -> None:
    torch.manual_seed(2)
    norms = []
    for _ in range(200):
        gradient = torch.randn(200)
        row = torch.tensor(sketched(gradient)["one"]) / 2  # its weight
        norms.append(float(row.norm() / 2 / gradient.norm()))  # of four numbers
    assert 0.9 < sum(norms) / len(norms) < 1.1
