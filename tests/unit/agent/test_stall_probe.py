"""Examining a worker tells a stuck one from a slow one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import psutil
import pytest

from pilot.agent.events_effects import Watched
from pilot.agent.stall_probe import SAMPLES, Sample, StallProbe, progress, sample
from tests.integration.agent_lab import until


def samples(state: str, *cpu_s: float) -> list[Sample]:
    return [Sample((state,), {7: seconds}) for seconds in cpu_s]


@pytest.mark.parametrize(
    ("seen", "moves", "says"),
    [
        (samples(psutil.STATUS_SLEEPING, 5.0, 5.0, 5.0), False, "no progress"),
        (samples(psutil.STATUS_SLEEPING, 5.0, 5.0, 5.01), False, "no progress"),
        (samples(psutil.STATUS_SLEEPING, 5.0, 5.0, 5.02), True, "is computing"),
        (samples(psutil.STATUS_DISK_SLEEP, 5.0, 5.0), True, "disk"),
        (samples(psutil.STATUS_STOPPED, 5.0, 5.0), False, "stopped"),
        ([*samples(psutil.STATUS_STOPPED, 5.0), *samples(psutil.STATUS_SLEEPING, 5.5)], True, "is computing"),
        ([Sample((), {}), Sample((), {})], False, "no progress"),
    ],
)
def test_progress_is_processor_time_or_a_wait_for_a_disk(seen: list[Sample], moves: bool, says: str) -> None:
    found, text = progress(seen)
    assert (found, says in text) == (moves, True), text


def test_what_a_child_does_counts_and_a_stopped_parent_does_not_hide_behind_it() -> None:
    sleeping, stopped = psutil.STATUS_SLEEPING, psutil.STATUS_STOPPED
    began = [Sample((sleeping,), {7: 1.0}), Sample((sleeping, sleeping), {7: 1.0, 8: 0.5})]
    ended = [Sample((sleeping, sleeping), {7: 1.0, 8: 0.5}), Sample((sleeping,), {7: 1.0})]
    assert progress(began)[0]
    assert not progress(ended)[0]
    assert not progress([Sample((stopped, sleeping), {7: 1.0, 8: s}) for s in (0.5, 2.5)])[0]


@pytest.fixture
def start() -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []

    def run(code: str) -> subprocess.Popen[bytes]:
        program = [sys.executable, "-S", "-c", f"import time; print(flush=True); {code}"]
        running.append(subprocess.Popen(program, stdout=subprocess.PIPE))
        out = running[-1].stdout
        assert out is not None
        out.readline()
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.communicate()


def pause(process: subprocess.Popen[bytes]) -> None:
    """Stop it, and wait until it has stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def fall_asleep(process: subprocess.Popen[bytes]) -> None:
    """Wait until it sleeps."""
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_SLEEPING, "it sleeps")


def watched(process: subprocess.Popen[bytes]) -> Watched:
    """A full examination of a real process; the waits between samples measure its CPU time."""
    probe = StallProbe()
    probe.begin("t")
    for _ in range(SAMPLES):
        if found := probe.tick({"t": [process.pid]}):
            return found[0]
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    raise AssertionError("the look did not end")


def test_real_processes(start: Callable[[str], subprocess.Popen[bytes]]) -> None:
    asleep, busy, stopped = start("time.sleep(600)"), start("[None for _ in iter(int, 1)]"), start("time.sleep(600)")
    pause(stopped)
    fall_asleep(asleep)
    assert not watched(asleep).progress
    assert watched(busy).progress
    assert "stopped" in watched(stopped).text


def test_a_worker_is_as_far_as_the_worst_of_its_processes_that_did_not_answer(
    start: Callable[[str], subprocess.Popen[bytes]],
) -> None:
    asleep, stopped = start("time.sleep(600)"), start("time.sleep(600)")
    pause(stopped)
    fall_asleep(asleep)
    probe = StallProbe()
    probe.begin("t")
    assert [probe.tick({"t": [asleep.pid, stopped.pid]}) for _ in range(SAMPLES - 1)] == [[]] * (SAMPLES - 1)
    (found,) = probe.tick({"t": [stopped.pid]})  # the other one has answered meanwhile
    assert found == Watched("t", False, "it is stopped (SIGSTOP)")


def test_an_examination_ends_with_its_worker() -> None:
    probe = StallProbe()
    probe.begin("t")
    assert [probe.tick({}) for _ in range(SAMPLES)] == [[]] * SAMPLES
    assert sample(2**22 + 1).states == ()
