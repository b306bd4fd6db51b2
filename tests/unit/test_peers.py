"""What the head-to-head counts: samples behind the final model, and gaps."""

from __future__ import annotations

from collections import Counter

from benchmarks import peers
from benchmarks.peers_record import SAMPLES


def test_a_part_of_an_epoch_is_even_and_what_is_outside_of_it_is_not() -> None:
    used = Counter(dict.fromkeys(range(SAMPLES), 1))
    used.update(range(100))
    assert peers.uneven(used) == {"samples_lost": 0, "samples_used_too_often": 0}
    used.update([0, 1])
    del used[SAMPLES - 1]
    assert peers.uneven(used) == {"samples_lost": 1, "samples_used_too_often": 2}


def test_a_restart_voids_the_steps_that_it_does_again() -> None:
    before: list[peers.Step] = [(0.0, 1, [1], []), (0.1, 2, [2], []), (0.2, 3, [3], [])]
    after: list[peers.Step] = [(10.0, 2, [2], []), (10.1, 3, [4], [])]
    records = {"a": before, "b": after}
    assert peers.useful(records, restarts=True) == [before[0], *after]
    assert peers.useful(records, restarts=False) == before + after


def test_a_gap_counts_from_the_step_before_the_event_to_the_end_of_its_phase() -> None:
    assert peers.longest_gap_s([1.0, 2.0, 2.5], 2.2, 3.0) == 0.5
    assert peers.longest_gap_s([1.0, 2.0], 2.2, 5.0) == 3.0
