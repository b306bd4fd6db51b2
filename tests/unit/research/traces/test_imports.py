"""Scheduler logs become traces of what their jobs left idle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change
from pilot.research.traces.jobs import ImportedTrace, TraceJob, idle_trace
from pilot.research.traces.pbs import import_pbs
from pilot.research.traces.sacct import import_sacct
from pilot.research.traces.swf import import_swf
from pilot.site.hostlist import expand


def n(*names: str) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names)


def swf(number: int, submit: int, wait: int, run: int, processors: int) -> str:
    return f"{number} {submit} {wait} {run} {processors} -1 -1 {processors} -1 -1 1 1 1 1 1 1 -1 -1\n"


def import_one_pbs(log: Path) -> ImportedTrace:
    return import_pbs([log])


class TestIdle:
    def test_gaps_are_fragments_and_handovers_are_not(self) -> None:
        jobs = [
            TraceJob(100, 200, n("a")),
            TraceJob(230, 400, n("a")),
            TraceJob(600, 700, n("a")),
            TraceJob(100, 700, n("b")),
        ]
        imported = idle_trace(jobs, handover_s=60)
        assert imported.origin_s == 100
        assert imported.changes == [Change(300, joined=n("a")), Change(500, left=n("a"))]

    def test_overlapping_jobs_of_one_node_count_once(self) -> None:
        jobs = [TraceJob(0, 500, n("a")), TraceJob(10, 100, n("a")), TraceJob(0, 1000, n("b"))]
        assert idle_trace(jobs).changes == [Change(500, joined=n("a"))]

    def test_a_running_job_holds_its_nodes_to_the_end(self) -> None:
        jobs = [TraceJob(0, None, n("a")), TraceJob(0, 1000, n("b")), TraceJob(2000, 3000, n("b"))]
        assert idle_trace(jobs).changes == [Change(1000, joined=n("b")), Change(2000, left=n("b"))]

    def test_nodes_without_a_job_are_idle_where_they_are_named(self) -> None:
        assert idle_trace([TraceJob(0, 100, n("a"))], n("a", "b")).changes == [Change(0, joined=n("b"))]

    def test_a_note_warns_that_nodes_without_a_job_are_missing(self) -> None:
        notes = idle_trace([TraceJob(0, 9, n("a")), TraceJob(99, 100, n("a"))]).notes
        assert any("assuming that the machine is the 1 nodes" in note for note in notes)

    def test_no_jobs_and_no_idle_node_are_refused(self) -> None:
        with pytest.raises(UserError, match="no job"):
            idle_trace([])
        with pytest.raises(UserError, match="no node was idle"):
            idle_trace([TraceJob(0, 100, n("a"))])


class TestSwf:
    def test_placement_is_first_fit_by_node_number(self, tmp_path: Path) -> None:
        log = tmp_path / "log.swf"
        log.write_text(
            "; MaxNodes: 4\n; MaxProcs: 8\n"
            + swf(1, 0, 0, 1000, 4)  # two processors per node: nodes 1 and 2
            + swf(2, 0, 100, 1900, 2)  # node 3
            + swf(3, 500, 1000, 500, 6)  # nodes 1, 2 and 4
            + swf(4, 600, 0, -1, 8)  # did not run
        )
        imported = import_swf(log)
        assert imported.changes == [
            Change(0, joined=n("n3", "n4")),
            Change(100, left=n("n3")),
            Change(1000, joined=n("n1", "n2")),
            Change(1500, left=n("n1", "n2", "n4")),
        ]
        assert any("placement is simulated, first fit" in note for note in imported.notes)

    def test_a_job_larger_than_the_free_nodes_is_cut_with_a_note(self, tmp_path: Path) -> None:
        log = tmp_path / "log.swf"
        log.write_text("; MaxNodes: 2\n" + swf(1, 0, 0, 100, 2) + swf(2, 50, 0, 200, 1) + swf(3, 400, 0, 100, 1))
        assert any(note.startswith("1 jobs found fewer free nodes") for note in import_swf(log).notes)


class TestSacct:
    def test_jobs_with_nodes_count_and_steps_do_not(self, tmp_path: Path) -> None:
        path = tmp_path / "sacct.txt"
        path.write_text(
            SACCT
            + "1|2026-10-01T00:00:00|2026-10-01T00:10:00|n[1-2]\n"
            + "1.batch|2026-10-01T00:00:00|2026-10-01T00:10:00|n1\n"
            + "2|2026-10-01T00:20:00|Unknown|n1\n"
            + "3|Unknown|Unknown|None assigned\n"
            + "4|2026-10-01T00:30:00|2026-10-01T00:40:00|n2\n"
        )
        assert import_sacct(path).changes == [
            Change(600, joined=n("n1", "n2")),
            Change(1200, left=n("n1")),
            Change(1800, left=n("n2")),
        ]


class TestPbs:
    DAY_1 = (
        "10/01/2026 00:00:01;Q;1.pbs;queue=prod\n"
        "10/01/2026 00:00:02;S;1.pbs;user=u start=1000 exec_host=x1/0*64+x2/0*64\n"
        "10/01/2026 00:00:02;S;2.pbs;user=u start=1000 exec_host=x3/0*64\n"
        "10/01/2026 00:10:00;E;1.pbs;user=u start=1000 end=1600 exec_host=x1/0*64+x2/0*64 Exit_status=0\n"
    )
    DAY_2 = "10/02/2026 00:00:00;E;3.pbs;user=u start=2200 end=2800 exec_host=x1/0+x1/1+x2/0\n"

    def test_records_of_several_days_make_one_trace(self, tmp_path: Path) -> None:
        (tmp_path / "20261001").write_text(self.DAY_1)
        (tmp_path / "20261002").write_text(self.DAY_2)
        imported = import_pbs([tmp_path / "20261001", tmp_path / "20261002"])
        assert imported.origin_s == 1000
        assert imported.changes == [Change(600, joined=n("x1", "x2")), Change(1200, left=n("x1", "x2"))]

    def test_jobs_of_a_preemptable_queue_hold_no_node_but_show_that_there_is_one(self, tmp_path: Path) -> None:
        pilot = "10/01/2026 00:00:03;S;4.pbs;user=u queue=preemptable start=1000 exec_host=x4/0*64\n"
        (tmp_path / "log").write_text(self.DAY_1 + pilot)
        imported = import_pbs([tmp_path / "log"], preemptable=["preemptable"])
        assert imported.changes[0] == Change(0, joined=n("x4"))


SACCT = "JobID|Start|End|NodeList\n"


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (import_swf, "; MaxProcs: 8\n" + swf(1, 0, 0, 10, 1), r"log:1: no '; MaxNodes: N' in the header"),
        (import_swf, "; MaxNodes: 2\n1 2 3\n", "log:2: expected the 18 fields .* found 3"),
        (
            *(import_swf, "; MaxNodes: 2\n" + swf(1, 0, 0, 10, 1).replace(" 10 ", " ten ")),
            "log:2: run time is not a number: 'ten'",
        ),
        (
            *(import_sacct, "JobID|Start|End\n1|2026-10-01T00:00:00|2026-10-01T00:10:00\n"),
            "log:1: no column NodeList; create the file with sacct",
        ),
        (import_sacct, SACCT + "1|yesterday|2026-10-01T00:10:00|n1\n", "log:2: not a time like .*'yesterday'"),
        (import_sacct, SACCT + "1|2026-10-01T00:10:00|2026-10-01T00:00:00|n1\n", ":2: job 1 ends before it starts"),
        (import_sacct, SACCT + "1|2026-10-01T00:00:00|2026-10-01T00:10:00|n[1\n", ":2: NodeList: unbalanced brackets"),
        (
            import_sacct,
            SACCT + "1|2026-10-01T00:00:00|2026-10\n",
            ":2: expected 4 columns, found 3; is the file cut off",
        ),
        (import_sacct, SACCT + "1|Unknown|Unknown|None assigned\n", "log: no job ran on a node"),
        (import_one_pbs, "nonsense\n", ":1: expected time;record type;job id;text"),
        (import_one_pbs, "t;E;1;start=5 exec_host=x1/0\n", ":1: a record of type E has no end="),
        (import_one_pbs, "t;E;1;start=5 end=4 exec_host=x1/0\n", ":1: end must be at least 5"),
        (import_one_pbs, "t;E;1;start=5 end=6 exec_host=none\n", ":1: exec_host names no node"),
    ],
)
def test_a_malformed_log_is_named_with_its_line(
    read: Callable[[Path], ImportedTrace], text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "log")


JOB = "{0}|2026-10-01T00:{0:02d}:00|2026-10-01T00:{0:02d}:30|n1\n"
E = "t;E;{0};start={0}00 end={0}10 exec_host=x1/0\n"
JOBS: dict[Callable[[Path], ImportedTrace], tuple[str, Callable[[int], str]]] = {
    import_sacct: (SACCT, JOB.format),
    import_one_pbs: ("", E.format),
    import_swf: ("; MaxNodes: 2\n", lambda k: swf(k, 300 * k, 0, 20, 1)),
}


@pytest.mark.parametrize(
    ("read", "bad", "message"),
    [
        (import_sacct, "9|2026-10-01T00:10:00|2026-10-01T00:00:00|n1\n", ":4: job 9 ends before it starts"),
        (import_sacct, SACCT, ":4: not a time"),  # two files in one
        (import_sacct, "9|2026-10-01T00:00:00|2026-10-01T00:10:00|n1|a|b\n", ":4: expected 4 columns, found 6"),
        (import_sacct, "9|2026-10-01T00:00:00|2026-10-01T00:10:00|n[2-1]\n", ":4: NodeList"),
        (import_sacct, f"9|{'x' * 200_000}|2026-10-01T00:10:00|n1\n", ":4: not a time"),
        (import_sacct, "Stra\xdfe|2026-10-01|n1\n", ":4: expected 4 columns"),
        (import_one_pbs, "t;E;9;user=M\xfcller start=5 end=4 exec_host=x1/0\n", ":3: end must be at least 5"),
        (import_one_pbs, "t;S;9;start=never exec_host=x1/0\n", ":3: start is not a number"),
        (import_one_pbs, "cut off\n", ":3: expected time;record type"),
        (import_swf, "9 300 0 ten 1\n", ":4: expected the 18 fields"),
        (import_swf, swf(9, 300, 0, 20, 1).replace(" 300 ", " inf "), ":4: submit time is not a finite number"),
    ],
)
def test_some_malformed_records_are_left_out_and_told_most_are_refused(
    read: Callable[[Path], ImportedTrace], bad: str, message: str, tmp_path: Path
) -> None:
    log, (header, job) = tmp_path / "log", JOBS[read]

    def imported(*records: str) -> ImportedTrace:
        log.write_bytes((header + "".join(records)).encode("latin-1"))
        return read(log)

    whole = imported(job(1), job(2), job(4))
    partly = imported(job(1), job(2), bad, job(4), bad)
    assert partly.changes == whole.changes
    [note] = set(partly.notes) - set(whole.notes)
    assert note.startswith("left out 2 of 5 records") and message in note
    with pytest.raises(UserError, match="2 of 3 records are malformed"):
        imported(bad, bad, job(1))


def test_a_job_whose_end_is_malformed_does_not_run_to_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    started, ended = "t;S;9;start=100 exec_host=x1/0\n", "t;E;9;start=100 end=soon exec_host=x1/0\n"
    log.write_text(started + ended + E.format(1) + E.format(2) + E.format(9))
    assert import_one_pbs(log).changes[0] == Change(10, joined=n("x1"))


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ["n1"]),
        ("nid[00009-00011,00020],login1", ["nid00009", "nid00010", "nid00011", "nid00020", "login1"]),
        ("r[0-1]n[2,4]", ["r0n2", "r0n4", "r1n2", "r1n4"]),
        ("", []),
    ],
)
def test_node_lists_expand(text: str, nodes: list[str]) -> None:
    assert expand(text) == nodes


@pytest.mark.parametrize("text", ["n[1-2", "n[a-b]", "n[]", "n[5-2]"])
def test_malformed_node_lists_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|brackets"):
        expand(text)
