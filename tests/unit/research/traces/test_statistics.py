"""Fragments and statistics, on a trace small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change
from pilot.research.traces.fragments import Fragment, changes_of, fragments_of, pool_size
from pilot.research.traces.statistics import change_chance, describe, distance, fragment_lengths, preemption_chance

A, B, C = (NodeId(name) for name in "abc")
CHANGES = [
    Change(0.0, joined=(A, B)),
    Change(600.0, joined=(C,), left=(A,)),
    Change(1800.0, left=(B,)),
    Change(3600.0, left=(C,)),
]


def test_fragments_are_the_spans_between_join_and_leave() -> None:
    assert fragments_of(CHANGES) == [Fragment(A, 0, 600), Fragment(B, 0, 1800), Fragment(C, 600, 3600)]


def test_a_node_that_stays_is_censored_at_the_end() -> None:
    assert fragments_of(CHANGES[:2])[1:] == [Fragment(B, 0, 600, censored=True), Fragment(C, 600, 600, censored=True)]


def test_changes_and_fragments_are_two_forms_of_one_trace() -> None:
    assert changes_of(fragments_of(CHANGES)) == CHANGES


def test_a_fragment_that_continues_another_makes_no_change() -> None:
    joined = changes_of([Fragment(A, 0, 10), Fragment(A, 10, 20)])
    assert joined == [Change(0, joined=(A,)), Change(20, left=(A,))]


def test_pool_size_integrates_to_eq_nodes() -> None:
    pool = pool_size(CHANGES)
    assert pool.node_seconds == 600 + 1800 + 3000
    assert pool.eq_nodes == pytest.approx(5400 / 3600)
    assert pool.quantiles([0.25, 0.9, 1.0]) == [1.0, 2.0, 2.0]
    assert pool_size(CHANGES, 600.0).eq_nodes == 2.0


def test_table_1_columns() -> None:
    statistics = describe(CHANGES, machine_nodes=10)
    assert (statistics.events_per_h, statistics.joins_per_h, statistics.leaves_per_h) == (4.0, 2.0, 3.0)
    assert statistics.idle_ratio == pytest.approx(0.15)
    assert describe(CHANGES).machine_nodes == 3
    assert statistics.short_fragments == 0.0
    assert dict(statistics.fragment_s)[1.0] == 3000.0


def test_preemption_chance_counts_events_that_a_leave_follows() -> None:
    assert preemption_chance(CHANGES, 599.0) == 0.0
    assert preemption_chance(CHANGES, 600.0) == 0.25
    assert preemption_chance(CHANGES, 1800.0) == 0.75


def test_change_chance_counts_events_that_any_other_follows() -> None:
    changes = [*CHANGES[:2], Change(700.0, joined=(A,)), *CHANGES[2:]]
    assert change_chance(changes, 99.0) == 0.0
    assert change_chance(changes, 100.0) == 0.2
    assert change_chance(changes, 1800.0) == 0.8
    assert dict(describe(changes).changed_within)[600] == 0.4


def test_distance_is_zero_of_a_sample_to_itself_and_one_of_disjoint_ones() -> None:
    lengths = fragment_lengths(CHANGES)
    assert distance(lengths, lengths) == 0.0
    assert distance(lengths, np.array([1e9])) == 1.0
    assert distance(np.array([1.0, 2.0]), np.array([2.0, 3.0])) == 0.5
