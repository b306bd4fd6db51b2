"""Ranks whose groups break on cue (:mod:`pilot.train.check.world`): how long they wait for each other."""

from __future__ import annotations

import pytest

from pilot.train.check.world import RankWorld


class Busy(RankWorld):
    """Its second rank never comes."""

    asked = 0

    def start_rank(self) -> None:
        """Does nothing."""

    def is_working(self) -> bool:
        self.asked += 1
        return self.asked < 3


def test_a_rank_waits_longer_for_others_that_work() -> None:
    world = Busy([], deadline_s=0.001)
    world.spawn(2)
    with pytest.raises(RuntimeError, match="a rank has waited for the others"):
        world.member().arrive(b"")
    assert world.asked == 3
