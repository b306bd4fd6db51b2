"""Inspecting real processes through /proc."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from pilot.agent.stall_probe import StoppedProcesses
from pilot.host import proc
from pilot.host.system import reap


def sleeps(environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process visible in /proc: after a successful exec, its environment appears a moment later."""
    process = subprocess.Popen(["sleep", "600"], env=environment)
    deadline = time.monotonic() + 10.0
    while not Path(f"/proc/{process.pid}/environ").read_bytes():
        assert time.monotonic() < deadline
    return process


def test_processes_are_found_by_all_entries_of_their_environment() -> None:
    name = f"PILOT_TEST_{os.getpid()}"
    one, two = sleeps({name: "1", "MORE": "x"}), sleeps({name: "1"})
    assert {p.pid for p in proc.marked(f"{name}=1")} == {one.pid, two.pid}
    assert [p.pid for p in proc.marked(f"{name}=1", "MORE=x")] == [one.pid]
    assert proc.marked(f"{name}=") == []
    assert proc.kill_marked(f"{name}=1") == []
    assert (one.wait(), two.wait()) == (-9, -9)


def test_a_tree_and_a_session_of_processes() -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '600']); print('up', flush=True); time.sleep(600)"
    leader = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert leader.stdout is not None
    assert leader.stdout.readline() == b"up\n"
    tree = proc.tree(leader.pid)
    assert tree[0].pid == leader.pid
    assert {p.pid for p in tree} == {p.pid for p in proc.session(leader.pid)}
    assert len(tree) == 2
    leader.kill()
    leader.wait()
    leader.stdout.close()
    assert proc.tree(leader.pid) == []
    (child,) = proc.session(leader.pid)
    proc.kill([child, *tree])
    psutil.wait_procs([child], timeout=10)


def test_stopped_processes_are_seen() -> None:
    process = subprocess.Popen(["sleep", "600"])
    assert not proc.is_stopped(process.pid)
    process.send_signal(signal.SIGSTOP)
    end_s = time.monotonic() + 10
    while not proc.is_stopped(process.pid):
        assert time.monotonic() < end_s
    process.kill()
    process.wait()
    assert not proc.is_stopped(process.pid)


def test_a_process_that_a_debugger_stops_is_traced() -> None:
    traceme = "import ctypes, os, signal; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), signal.SIGSTOP)"
    process = subprocess.Popen([sys.executable, "-c", traceme])
    _, status = os.waitpid(process.pid, 0)
    assert os.WIFSTOPPED(status)
    assert proc.is_traced(process.pid)
    assert proc.is_stopped(process.pid)
    process.kill()
    process.wait()
    assert not proc.is_traced(process.pid)


def test_segments_are_seen_while_they_are_mapped_and_there() -> None:
    path = proc.SHARED_MEMORY / f"pilot test {os.getpid()}"
    path.write_bytes(b"x" * 4096)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert path.name in proc.segments(os.getpid())
        proc.unlink_segments([path.name, "never-there"])
        assert not path.exists()
        assert path.name not in proc.segments(os.getpid())


def test_only_orphans_are_reaped() -> None:
    own = subprocess.Popen(["true"])
    os.waitid(os.P_PID, own.pid, os.WEXITED | os.WNOWAIT)
    assert reap([own.pid]) == []
    orphan = subprocess.Popen(["sh", "-c", "exit 3"])
    assert own.wait() == 0
    os.waitid(os.P_PID, orphan.pid, os.WEXITED | os.WNOWAIT)
    assert [(pid, os.waitstatus_to_exitcode(status)) for pid, status in reap()] == [(orphan.pid, 3)]
    orphan.returncode = 3


def test_the_time_since_a_process_was_first_seen_stopped() -> None:
    stops = StoppedProcesses()
    assert stops.update(10.0, {1: 5.0, 2: 5.0}) == {1: 0.0, 2: 0.0}
    assert stops.update(12.0, {2: 5.0}) == {2: 2.0}
    assert stops.update(13.0, {1: 5.0, 2: 5.0}) == {1: 0.0, 2: 3.0}
    assert stops.update(14.0, {1: 5.0, 2: 5.1}) == {1: 1.0, 2: 0.0}, "the second one has run meanwhile"
