"""Some seeded plays; ``python -m tests.between.plays`` plays more of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

from tests.between import drawn
from tests.between.plays import networks, outcome
from tests.chaos.network import Lan, unavailable

SEEDS = [("gloo", 2), ("gloo", 15), ("gloo", 58), ("mpi", 2)]
SEEDS_WITHOUT_NETWORKS = [("gloo", 1)]
ALL = range(200)


@pytest.fixture
def lan() -> Iterator[Lan]:
    """Networks of the nodes that can be cut."""
    if reason := unavailable():
        pytest.skip(reason)
    with networks() as made:
        assert made is not None
        yield made


@pytest.mark.parametrize(("between", "seed"), SEEDS)
def test_a_play_in_networks_that_are_cut(tmp_path: Path, lan: Lan, between: str, seed: int) -> None:
    made = outcome(seed, between, lan, tmp_path)
    assert not made.error, made.text()


@pytest.mark.parametrize(("between", "seed"), SEEDS_WITHOUT_NETWORKS)
def test_a_play_without_networks(tmp_path: Path, between: str, seed: int) -> None:
    made = outcome(seed, between, None, tmp_path)
    assert not made.error, made.text()


def test_the_plays_of_all_seeds_have_each_deed_in_each_phase() -> None:
    acts = [*chain.from_iterable(drawn.drawn(seed).acts for seed in ALL)]
    phases = (*drawn.IN_A_STEP, *drawn.BETWEEN_STEPS, *drawn.IN_A_START, drawn.AT_THE_END)
    kinds = {"deaths": drawn.DEATHS, "stops": drawn.STOPS, "cuts": drawn.CUTS}
    assert any(act.phase == drawn.IN_A_LOSS and act.soon for act in acts)
    struck = {(kind, act.phase) for act in acts for kind, deeds in kinds.items() if act.deed in deeds}
    assert struck >= {(kind, phase) for kind in kinds for phase in phases}
    assert {act.order for act in acts} >= set(drawn.CHANGES)
    assert {act.deed for act in acts} >= {*drawn.DEATHS, *drawn.STOPS, *drawn.CUTS, *drawn.MOMENTS}


def test_a_seed_always_has_the_same_play() -> None:
    assert drawn.drawn(7) == drawn.drawn(7)
