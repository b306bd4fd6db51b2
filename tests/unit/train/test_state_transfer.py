"""Which rank gives which other one its state when a generation starts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilot.train.state.state_transfer import NOTHING, Holding, strangers, who_spreads

holdings = st.builds(Holding, st.integers(-1, 4), st.integers(0, 5), st.just(1)).map(
    lambda holding: Holding(NOTHING, 0, 1) if holding.generation == NOTHING else holding
)


@given(st.lists(holdings, min_size=1, max_size=8))
def test_afterwards_all_hold_the_state_of_the_most_advanced(table: list[Holding]) -> None:
    spreading = who_spreads(table)
    best = max((holding.generation, holding.step) for holding in table)
    assert (table[spreading.root].generation, table[spreading.root].step) == best
    assert spreading.root not in spreading.takers
    for rank, holding in enumerate(table):
        holds_it = (holding.generation, holding.step) == best and best[0] != NOTHING
        assert holds_it or rank in spreading.takers or rank == spreading.root
    assert spreading.fresh == (best[0] == NOTHING)


def test_only_ranks_that_lag_behind_take() -> None:
    table = [Holding(3, 10, 1), Holding(3, 11, 1), Holding(NOTHING, 0, 1), Holding(3, 11, 1)]
    spreading = who_spreads(table)
    assert (spreading.root, spreading.takers) == (1, (0, 2))


def test_a_newer_generation_beats_a_higher_step_of_a_lineage_that_was_given_up() -> None:
    assert who_spreads([Holding(2, 90, 1), Holding(4, 50, 1)]).root == 1


def test_a_rank_without_a_gpu_is_a_stranger_among_ranks_that_train_on_theirs() -> None:
    on_cpu, on_gpu = Holding(3, 10, 1), Holding(3, 10, 1, on_gpu=True)
    of_gpus = [on_gpu, Holding(NOTHING, 0, 1), Holding(NOTHING, 0, 1, on_gpu=True)]
    assert strangers(of_gpus, who_spreads(of_gpus)) == {1}
    of_cpus = [Holding(NOTHING, 0, 1, on_gpu=True), on_cpu]
    assert strangers(of_cpus, who_spreads(of_cpus)) == {0}


def test_if_nobody_has_a_state_the_gpus_are_what_the_trainer_was_meant_for() -> None:
    fresh = [Holding(NOTHING, 0, 1), Holding(NOTHING, 0, 1, on_gpu=True)]
    assert strangers(fresh, who_spreads(fresh)) == {0}
    assert strangers(fresh[:1] * 2, who_spreads(fresh[:1] * 2)) == set()
