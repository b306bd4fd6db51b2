"""Faults of a replay's trainers, drawn from a seed."""

from __future__ import annotations

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.research.traces.workload import Mishaps, TrainerEnd, WorkloadRow, befallen

CURVE = Curve.of([(1, 2.0), (2, 3.0)])
ROWS = [
    WorkloadRow(TrainerSpec(TrainerId(f"t{i}"), max_nodes=2, curve=CURVE, fixed_curve=True, samples=1e4), i, 1e4, 0)
    for i in range(2000)
]


def test_nothing_is_drawn_where_nothing_goes_wrong() -> None:
    assert befallen(ROWS, Mishaps(seed=7)) == ROWS


def test_noise_changes_the_estimates_of_planners_and_not_the_work() -> None:
    noisy = befallen(ROWS, Mishaps(eta_noise=0.1))
    estimates = [row.spec.samples or 0.0 for row in noisy]
    assert {row.samples for row in noisy} == {1e4}
    assert 9000 <= min(estimates) < 9020 and 10_980 < max(estimates) <= 11_000
    assert befallen(ROWS, Mishaps(eta_noise=0.1)) == noisy != befallen(ROWS, Mishaps(eta_noise=0.1, seed=2))


def test_shares_of_trainers_hang_fail_and_are_cancelled() -> None:
    drawn = befallen(ROWS, Mishaps(hang_share=0.05, fail_share=0.1, cancel_share=0.2))
    for ending, share, most in (
        (TrainerEnd.HANGS, 0.05, 600),
        (TrainerEnd.FAILS, 0.1, 600),
        (TrainerEnd.CANCELLED, 0.2, 1e4),
    ):
        those = [row for row in drawn if row.ending is ending]
        assert len(those) / len(ROWS) == pytest.approx(share, abs=0.03)
        assert 0.9 * most < max(row.samples for row in those) <= most, "two samples a second for five minutes"
        assert {row.spec.samples for row in those} == {1e4}


@pytest.mark.parametrize("shares", [{"hang_share": 1.1}, {"eta_noise": -0.1}, {"fail_share": 0.6, "cancel_share": 0.5}])
def test_shares_are_shares(shares: dict[str, float]) -> None:
    with pytest.raises(UserError, match=r"between 0 and 1|add up to 1\.1"):
        Mishaps(**shares)
