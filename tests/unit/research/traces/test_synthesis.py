"""Synthetic traces have the same distributions as their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change, read_changes, write_changes
from pilot.research.traces.statistics import describe, distance, fragment_lengths
from pilot.research.traces.synthesis import PUBLISHED, draw, resample

WEEK_S = 168 * 3600.0
SOURCE = draw(PUBLISHED["summit"].on(256), WEEK_S, seed=1)


def test_published_statistics_are_met() -> None:
    law = PUBLISHED["summit"].on(1152)
    got = describe(draw(law, WEEK_S, seed=3), law.machine_nodes)
    assert got.joins_per_h == pytest.approx(law.joins_per_h, rel=0.1)
    assert got.leaves_per_h == pytest.approx(law.leaves_per_h, rel=0.1)
    assert got.eq_nodes == pytest.approx(law.eq_nodes, rel=0.15)
    assert got.short_fragments == pytest.approx(law.short_fragments, abs=0.03)
    assert got.short_node_time == pytest.approx(law.short_node_time, abs=0.03)


def test_the_law_of_lengths_has_the_published_shares() -> None:
    mu, sigma = PUBLISHED["summit"].length_law()
    assert mu == pytest.approx(6.097, abs=1e-3)
    assert sigma == pytest.approx(1.4835, abs=1e-3)


def test_resampling_keeps_the_distributions() -> None:
    synthetic = resample(SOURCE, 2 * WEEK_S, seed=5)
    assert distance(fragment_lengths(SOURCE), fragment_lengths(synthetic)) < 0.06
    source, got = describe(SOURCE), describe(synthetic)
    assert got.joins_per_h == pytest.approx(source.joins_per_h, rel=0.1)
    assert got.leaves_per_h == pytest.approx(source.leaves_per_h, rel=0.1)
    assert got.eq_nodes == pytest.approx(source.eq_nodes, rel=0.2)


def test_fewer_nodes_are_a_run_of_neighbours() -> None:
    synthetic = resample(SOURCE, WEEK_S, seed=5, nodes=16)
    used = sorted({node for change in synthetic for node in change.joined})
    numbers = [int(node[1:]) for node in used]
    assert max(numbers) - min(numbers) < 16


def test_a_seed_gives_one_trace_and_another_seed_another() -> None:
    first, again, other = (resample(SOURCE, WEEK_S / 7, seed) for seed in (5, 5, 6))
    assert first == again != other


def test_a_synthetic_trace_is_valid(tmp_path: Path) -> None:
    for number, changes in enumerate([SOURCE, resample(SOURCE, WEEK_S / 3, seed=2, block_s=5000.0)]):
        path = tmp_path / f"{number}.csv.gz"
        write_changes(path, changes)
        assert read_changes(path) == changes


def test_more_nodes_than_the_source_names_are_refused() -> None:
    with pytest.raises(UserError, match="the source has 2 nodes"):
        resample([Change(0, joined=(NodeId("a"), NodeId("b"))), Change(10, left=(NodeId("a"),))], 10, 1, nodes=3)


def test_a_single_event_is_refused() -> None:
    with pytest.raises(UserError, match="a single event"):
        resample([Change(0, joined=(NodeId("a"),))], 10, 1)
