"""FLEET's extrapolation of rates, and its experiment, on cases small enough to work out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import fleet, fleet_rates
from pilot import planners
from pilot.core.curves.curve import Curve
from pilot.research.traces.workload import WorkloadRow


def test_eq_1_goes_on_as_the_last_two_counts_did() -> None:
    assert fleet_rates.extrapolated(64, 8, 80.0, 70.0) == pytest.approx(640.0)  # linear stays linear
    assert fleet_rates.extrapolated(8, 8, 60.0, 55.0) == pytest.approx(60.0)
    # 2 GPUs do 18 where one does 10: each further one leaves 0.9 of what each does
    assert fleet_rates.extrapolated(4, 2, 18.0, 10.0) == pytest.approx(4 * 9 * 0.9**2)


def test_it_explodes_where_few_counts_were_measured() -> None:
    far = {(r.base, r.noise): r for r in fleet_rates.rows() if r.nodes == 64}
    assert far[2, fleet_rates.NOISE].most > 30
    assert far[2, fleet_rates.NOISE].least < 0.01
    assert 0.5 < far[8, 0.0].least <= far[8, 0.0].most < 2


def test_the_profiles_of_the_papers_ensemble() -> None:
    rates = [t.spec.curve.at(1) for t in fleet.ensemble(0, (20, 80)) if t.spec.curve]
    assert (min(rates), max(rates), len(rates)) == (*fleet.RATES, fleet.TRAINERS)
    plan = fleet_rates.profile_plan(rates, gpus_per_node=4)
    assert (plan.paces, plan.base, plan.most) == (9, 8, 9)


def trainers(*works: tuple[float, float]) -> list[WorkloadRow]:
    """(images a second on each GPU, images) for each."""
    rows = [row for row, _ in zip(fleet.ensemble(0, (1, 1)), works, strict=False)]
    return [
        replace(row, samples=images, spec=replace(row.spec, curve=Curve.proportional(rate)))
        for row, (rate, images) in zip(rows, works, strict=True)
    ]


def test_one_gpu_each_in_turns() -> None:
    pause_s = fleet.RESCALE_S[0]
    a, b, c = fleet.one_gpu_each(trainers((10.0, 1000.0), (5.0, 1000.0), (1.0, 50.0)), gpus=2).values()
    assert (a, b, c) == pytest.approx((100 + pause_s, 200 + pause_s, 150 + 2 * pause_s))


def test_at_one_pace_the_slowest_sets_it() -> None:
    pause_s = max(fleet.RESCALE_S)
    given = trainers((10.0, 1000.0), (5.0, 2000.0))
    even = list(fleet.at_one_pace(given, fleet.even_shares, gpus=2).values())
    assert even == pytest.approx([200 + pause_s, 300 + 2 * pause_s])  # then the second has both GPUs
    paced = list(fleet.at_one_pace(given, planners.make("flotilla"), gpus=3).values())
    assert paced == pytest.approx([100 + pause_s, 100 + 1000 / 15 + 2 * pause_s])  # one and two GPUs: both do 10
