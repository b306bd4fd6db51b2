"""Recording: two consecutive polls make a fragment; a recorded trace continues where it ended."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from pilot.core.errors import SubmitError, UserError
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change, read_changes
from pilot.research.traces.record import Recorder, pbs_idle, query_slurm, record, resume, slurm_idle, slurm_preemptable


def n(*names: str) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names)


def test_a_node_that_only_one_poll_saw_is_dropped() -> None:
    recorder = Recorder()
    polls = [n("a"), n("a", "b"), n("a"), n("a", "c"), n("c"), n("c")]
    changes = [recorder.poll(10.0 * k, idle) for k, idle in enumerate(polls)]
    assert [change for change in changes if change] == [
        Change(0, joined=n("a")),
        Change(30, joined=n("c")),
        Change(40, left=n("a")),
    ]


def scripted(stop: Event, polls: list[set[NodeId] | SubmitError]) -> Callable[[], set[NodeId]]:
    """A scheduler that answers with ``polls`` in turn and sets ``stop`` with the last one."""
    answers = iter(polls)
    left = len(polls)

    def query() -> set[NodeId]:
        nonlocal left
        left -= 1
        if left == 0:
            stop.set()
        answer = next(answers)
        if isinstance(answer, SubmitError):
            raise answer
        return answer

    return query


def test_a_recording_goes_on_where_it_ended(tmp_path: Path) -> None:
    path, warnings, clock = tmp_path / "idle.csv", [], itertools.count(1_700_000_000.5, 30)
    for nodes in (n("a", "b"), n("b", "c")):
        stop, silent = Event(), SubmitError("squeue gave no answer", transient=True)
        query = scripted(stop, [set(nodes), set(nodes), silent, set(nodes)])
        record(path, query, 0.001, stop, warn=warnings.append, clock=lambda: next(clock))
    assert read_changes(path) == [Change(30, joined=n("a", "b")), Change(120, joined=n("c"), left=n("a"))]
    assert resume(path) == (1_700_000_000.0, 120.0, {"b", "c"})
    assert warnings == ["skipped this poll: squeue gave no answer"] * 2


@pytest.mark.parametrize("answer", ["{", "[]", '{"nodes": [{"state": []}]}', '{"sinfo": [{"nodes": 7}]}', "null"])
def test_an_answer_of_another_form_costs_one_poll(answer: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(f"#!/bin/sh\necho '{answer}'\n")
    sinfo.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SubmitError, match="sinfo -N --json: cannot read its answer") as caught:
        query_slurm()
    assert caught.value.transient


def test_a_row_that_was_cut_off_is_removed(tmp_path: Path) -> None:
    path, stop = tmp_path / "idle.csv", Event()
    record(path, scripted(stop, [{NodeId("a")}] * 3), 0.001, stop, warn=print, clock=lambda: 5.0)
    whole = path.read_text()
    path.write_text(f"{whole}30,b,jo")
    assert resume(path)[1:] == (0.0, {"a"})
    assert path.read_text() == whole


def test_times_rise_where_the_clock_does_not(tmp_path: Path) -> None:
    path = tmp_path / "idle.csv"
    for nodes in (n("a"), n("b")):
        stop = Event()
        record(path, scripted(stop, [set(nodes)] * 3), 0.001, stop, warn=print, clock=lambda: 5.0)
    assert read_changes(path) == [Change(0, joined=n("a")), Change(1, joined=n("b"), left=n("a"))]


def test_a_scheduler_that_is_not_there_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    stop = Event()
    with pytest.raises(SubmitError, match="not installed"):
        record(tmp_path / "idle.csv", scripted(stop, [SubmitError("not installed")]), 1, stop, warn=print)
    assert not (tmp_path / "idle.csv").exists()


def test_a_trace_from_elsewhere_is_not_appended_to(tmp_path: Path) -> None:
    (tmp_path / "idle.csv").write_text("time_s,node,event\n0,a,join\n")
    with pytest.raises(UserError, match=r"idle\.csv:1: not a recorded trace"):
        resume(tmp_path / "idle.csv")


SINFO_22 = {
    "nodes": [
        {"name": "n1", "state": "idle", "state_flags": ["PLANNED"]},
        {"name": "n2", "state": "idle", "state_flags": ["DRAIN"]},
        {"name": "n3", "state": "allocated", "state_flags": []},
        {"name": "n4", "state": "idle", "state_flags": ["COMPLETING"]},
    ]
}
SINFO_24 = {
    "sinfo": [
        {"nodes": {"nodes": ["n1"]}, "node": {"state": ["IDLE", "PLANNED"]}},
        {"nodes": {"nodes": ["n2"]}, "node": {"state": ["IDLE", "DRAIN"]}},
        {"nodes": {"nodes": ["n3"]}, "node": {"state": ["ALLOCATED"]}},
    ]
}


@pytest.mark.parametrize("sinfo", [SINFO_22, SINFO_24])
def test_slurm_nodes_that_a_job_could_use_are_idle(sinfo: object) -> None:
    assert slurm_idle(sinfo) == {"n1"}


def test_nodes_that_only_preemptable_jobs_hold_count_as_idle() -> None:
    squeue = {
        "jobs": [
            {"job_state": "RUNNING", "partition": "preempt", "nodes": "n[1-3]"},
            {"job_state": ["RUNNING"], "partition": "high", "nodes": "n3"},
            {"job_state": "COMPLETED", "partition": "high", "nodes": "n1"},
            {"job_state": ["PENDING"], "partition": "preempt", "nodes": ""},
        ]
    }
    assert slurm_preemptable(squeue, ["preempt"]) == {"n1", "n2"}


def test_pbs_nodes_that_are_free_and_empty_are_idle() -> None:
    nodes = {"a": {"state": "free"}, "b": {"state": "free", "jobs": ["1.pbs"]}, "c": {"state": "offline"}}
    assert pbs_idle({"nodes": nodes}) == {"a"}


def test_pbs_nodes_that_only_pilots_hold_are_idle() -> None:
    nodes = {
        "a": {"state": "job-busy", "jobs": ["1.pbs/0", "1.pbs/1"]},
        "b": {"state": "free", "jobs": ["1.pbs/2", "2.pbs/0"]},
        "c": {"state": "down", "jobs": ["1.pbs/3"]},
    }
    assert pbs_idle({"nodes": nodes}, {"1.pbs"}) == {"a"}
