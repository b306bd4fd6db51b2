"""Measured points, whatever was measured when: plans get usable rates, and superlinear ones only if seen twice."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.curves.curve import RATES
from pilot.core.curves.curve_model import ON_SUMMIT, MeasuredRate
from pilot.core.curves.measured import Measured
from pilot.core.curves.points import TWICE, for_another, settled
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec

rates = st.one_of(st.floats(50.0, 500.0), st.floats(*RATES))
points = st.lists(
    st.builds(MeasuredRate, st.integers(1, 64), rates, st.floats(0.0, 1.0), st.integers(0, TWICE)),
    max_size=6,
    unique_by=lambda point: point.nodes,
).map(lambda found: tuple(sorted(found, key=lambda point: point.nodes)))
visits = st.lists(st.tuples(st.integers(1, 8), rates, st.integers(1, 12), st.floats(0.0, 1e5)), max_size=8)


@settings(deadline=None)
@given(points, st.integers(1, 64))
def test_only_rates_that_were_seen_twice_are_superlinear(of: tuple[MeasuredRate, ...], newest: int) -> None:
    found = settled(of, ON_SUMMIT, newest)
    assert [(p.nodes, p.visits) for p in found] == [(p.nodes, p.visits) for p in of]
    assert all(new.error >= old.error for new, old in zip(found, of, strict=True))
    for p, q in pairwise(found):
        assert q.visits == TWICE or q.per_s / q.nodes <= p.per_s / p.nodes * (1 + 1e-9)


@settings(deadline=None)
@given(points, visits)
def test_any_visits_give_a_curve_that_has_not_moved_once_it_is_planned_with(
    known: tuple[MeasuredRate, ...], seen: list[tuple[int, float, int, float]]
) -> None:
    measured = Measured(TrainerSpec(TrainerId("t"), max_nodes=8, known=for_another(known, 0.0)))
    now_s = 0.0
    for generation, (nodes, per_s, reports, pause_s) in enumerate(seen):
        now_s += pause_s
        for _ in range(reports):
            now_s += 1.0
            measured.rate(now_s, nodes, per_s, generation)
    measured.learn(now_s=now_s)
    assert not measured.moved
    assert all(math.isfinite(e.per_s) and math.isfinite(e.error) and e.per_s >= 0 for e in measured.estimates())
    measured.learn(now_s=now_s + 1e6)
    assert not measured.moved, "age alone asks for no plan"
