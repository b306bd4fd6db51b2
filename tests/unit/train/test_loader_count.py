"""How many loader processes are found to be enough, using times made up by the tests."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.train.data.loader_count import WAITS, LoaderCount

BATCHES = 2000


def train(count: LoaderCount, waits: Callable[[int], float], used_s: float, batches: int = BATCHES) -> list[str]:
    """A training loop that uses each batch for ``used_s`` after waiting for it; returns the messages."""
    said, before = [], None
    for _ in range(batches):
        if count.now != before:
            count.begins()
            before = count.now
        if found := count.took(waits(count.now), used_s):
            said.append(found)
    return said


def loading(load_s: float, used_s: float, scales_to: int = 1000) -> Callable[[int], float]:
    """How long training waits if a process loads a batch in ``load_s``, and more than ``scales_to`` processes are no
    faster.
    """
    return lambda processes: max(0.0, load_s / min(processes, scales_to) - used_s) if processes else load_s


def test_the_least_that_keeps_the_training_from_waiting() -> None:
    for load_s, least in ((0.001, 0), (0.09, 1), (0.15, 2), (0.25, 4), (0.7, 8)):
        count = LoaderCount(0, most=16)
        (said,) = train(count, loading(load_s, 0.1), 0.1)
        assert count.now == least
        assert said.startswith(f"{least} loader process")


def test_where_more_do_not_help_the_least_with_the_best_rate() -> None:
    count = LoaderCount(0, most=64)
    (said,) = train(count, loading(0.8, 0.1, scales_to=4), 0.1)
    assert count.now == 4
    assert "training still waits for data" in said
    assert "16: 5 batches/s, waiting 50%" in said  # two counts without a gain are enough: 32 and 64 are not tried
    assert "32:" not in said
    few = LoaderCount(0, most=3)
    (said,) = train(few, loading(0.8, 0.1), 0.1)
    assert few.now == 3
    assert said.startswith("3 loader processes, of at most 3; training still waits for data")


def test_a_training_that_waits_in_any_case_keeps_no_process() -> None:
    count = LoaderCount(0, most=64)
    train(count, lambda _processes: 1.0, 0.1)
    assert count.now == 0


def test_who_begins_to_wait_later_gets_more_and_who_is_resized_is_measured_anew() -> None:
    count = LoaderCount(0, most=16)
    train(count, loading(0.15, 0.1), 0.1)
    assert count.now == 2
    assert train(count, lambda processes: 0.0 if processes > 2 else 0.009, 0.1) == []  # a small gain is no reason
    (said,) = train(count, lambda processes: 0.0 if processes > 7 else 0.1, 0.1)
    assert said.startswith("8 loader processes")
    lost = LoaderCount(1, most=2)
    (said,) = train(lost, lambda _processes: 1.0, 0.1)
    assert lost.now == 1 and "still waits" in said
    assert train(lost, lambda _processes: 0.7, 0.1) == []  # about as before
    lost.resized()
    (said,) = train(lost, loading(0.15, 0.1), 0.1)
    assert lost.now == 2 and "still waits" not in said


def test_where_nothing_helps_and_data_gets_slower_or_faster_all_are_measured_again_ever_more_seldom() -> None:
    count = LoaderCount(0, most=2)
    (said,) = train(count, lambda processes: (0.1, 0.3, 0.9)[processes], 0.1)  # from an epoch that got slower meanwhile
    assert count.now == 0 and "still waits" in said
    (said,) = train(count, loading(1.0, 0.1), 0.1)
    assert count.now == 2 and "still waits" in said
    assert train(count, loading(1.1, 0.1), 0.1) == []
    said = [line for epoch in range(400) for line in train(count, loading(1.0 if epoch % 2 else 9.0, 0.1), 0.1, 100)]
    assert 0 < len(said) < 12 and count.now == 2
    (said,) = train(count, loading(0.1, 0.1), 0.1, batches=200_000)
    assert "still waits" not in said


def test_processes_that_fail_are_given_up_for_the_most_that_worked() -> None:
    count = LoaderCount(0, most=16)
    assert count.failed("of itself") is None, "nothing smaller worked"
    train(count, loading(10.0, 0.1), 0.1, batches=60)
    assert count.now == 2
    count.now = 4
    assert count.failed("no memory") == "1 loader process, since 4 failed: no memory"
    assert train(count, loading(10.0, 0.1), 0.1) == []
    count.resized()
    (said,) = train(count, loading(10.0, 0.1), 0.1)
    assert said.startswith("1 loader process, of at most 1; training still waits")
    assert count.failed("again") == "0 loader processes, since 1 failed: again"
    assert count.failed("again") is None


def test_the_start_of_processes_does_not_count() -> None:
    count = LoaderCount(1, most=8)
    for _ in range(100):  # epochs of 6 batches, and processes that restart in each
        count.begins()
        for batch in range(6):
            count.took(5.0 if batch == 0 else 0.0, 0.1)
    assert count.now == 1


@settings(deadline=None)
@given(load_s=st.floats(1e-3, 10), used_s=st.floats(1e-3, 10), most=st.integers(1, 128), scales_to=st.integers(1, 128))
def test_it_is_never_more_than_allowed_and_never_slower_than_what_was_tried(
    load_s: float, used_s: float, most: int, scales_to: int
) -> None:
    count, waits = LoaderCount(0, most), loading(load_s, used_s, scales_to)
    said = train(count, waits, used_s)
    assert len(said) == 1
    assert count.now <= most
    share = waits(count.now) / (waits(count.now) + used_s)
    tried = [processes for processes in (0, 1, 2, 4, 8, 16, 32, 64, 128) if processes <= most]
    if share > WAITS:
        assert all(waits(n) + used_s >= 0.9 * (waits(count.now) + used_s) for n in [*tried, most])
    else:
        assert all(waits(n) / (waits(n) + used_s) > WAITS for n in tried if n < count.now)
