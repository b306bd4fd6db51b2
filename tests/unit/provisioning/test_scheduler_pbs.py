"""PBS's answers, recorded from an OpenPBS 23.06.06 (``tests/pbs``)."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from pilot.core.errors import SubmitError
from pilot.host.commands import CommandRefused
from pilot.provisioning.scheduler import CancelRefused, JobEnd, JobPhase
from pilot.provisioning.scheduler_pbs import PbsQueue, _parsed, _view
from pilot.site.site import Site
from tests.unit.provisioning.recordings import PREFIX, Recorded, text

SITE = Site(name="x", scheduler="pbspro", queue="preemptable", account="abc", max_jobs=20, max_jobs_scope="project")
NAMES = (
    *("running", "held", "queue_stopped", "requeued", "runs_again", "suspended", "resumed", "completed", "failed"),
    *("signal", "deleted_by_its_user", "deleted_by_an_admin", "deleted_while_held", "preempted_by_deletion"),
)
ANSWERS = {f"{number}.pbs0": text(f"openpbs-23.06/{name}.dsv") for number, name in enumerate(NAMES, 101)}
ID = dict(zip(NAMES, ANSWERS, strict=True))
FOREIGN = "200.pbs0"
COMMANDS = ("qselect", "qstat")
OVER = [ID[name] for name in NAMES[7:]]


def answer(job: str) -> str:
    """The recorded answer, as if about ``job``."""
    recorded = ANSWERS[ID["running"]] if job == FOREIGN else ANSWERS[job]
    shown = recorded.replace(recorded.split("|")[0], f"Job Id: {job}", 1)
    return shown.replace(PREFIX, "mine") if job == FOREIGN else shown


class Server:
    """A PBS server that knows the recorded jobs and answers ``qstat -f -F dsv id1 id2 …`` like 23.06.06."""

    def __init__(self, *, history: bool = True) -> None:
        self.history = history
        self.knows = {*ANSWERS, FOREIGN}

    def qstat(self, command: Sequence[str]) -> str:
        if "-Q" in command:
            if (shown := QUEUES.get(command[-1].partition("@")[0])) is None:
                raise CommandRefused("qstat", f"qstat: Unknown queue {command[-1]}", 170)
            return shown
        assert command[-4:-1] == ["-f", "-F", "dsv"] or command.index("dsv") > 0
        jobs = command[command.index("dsv") + 1 :]
        if "-x" in command and not self.history:
            return ""
        known = [job for job in jobs if job in self.knows and (self.history or job not in OVER)]
        output = "".join(answer(job) for job in known)
        if len(known) == len(jobs):
            return output
        said = "\n".join(f"qstat: Unknown Job Id {job}" for job in jobs if job not in known)
        raise CommandRefused("qstat", said, 153, output)


QUEUES = {
    "preemptable": "Queue: preemptable\n    queue_type = Execution\n",
    "entrance": "Queue: entrance\n    queue_type = Route\n    route_destinations = preemptable,inner,gone\n",
    "inner": "Queue: inner\n    queue_type = Route\n    route_destinations = preemptable,\n\tentrance,small\n",
    "small": "Queue: small\n    queue_type = Execution\n",
}


def qselect(command: Sequence[str]) -> str:
    """Ours, which are in queue ``preemptable``, one of ours elsewhere, and a stranger's job."""
    ours = f"{ID['running']}\n{FOREIGN}\n" if command[-1] in ("preemptable", "ada", "@pbs1") else ""
    return ours if command[1] == "-u" else f"{ours}300.pbs0\n"


def recorded(server: Server | None = None) -> Recorded:
    return Recorded({"qstat": (server or Server()).qstat, "qselect": qselect, "qdel": ""})


def queue(run: Recorded, site: Site = SITE) -> PbsQueue:
    return PbsQueue(site, PREFIX, run, user="ada")


def test_the_nodes_of_a_job() -> None:
    jobs = [ID["preempted_by_deletion"], ID["failed"]]
    views = queue(recorded()).poll(jobs, 0.0).jobs
    assert [views[job].nodes for job in jobs] == [{"n1", "n2", "n3"}, {"n1"}]


@pytest.mark.parametrize(
    ("name", "phase", "ending", "restart"),
    [
        ("running", JobPhase.RUNNING, None, 0),
        ("held", JobPhase.PENDING, None, 0),
        ("queue_stopped", JobPhase.PENDING, None, 0),
        ("requeued", JobPhase.PENDING, None, 1),
        ("runs_again", JobPhase.RUNNING, None, 1),
        ("suspended", JobPhase.SUSPENDED, None, 0),
        ("resumed", JobPhase.RUNNING, None, 0),
        ("completed", JobPhase.OVER, JobEnd.COMPLETED, 0),
        ("failed", JobPhase.OVER, JobEnd.FAILED, 0),
        ("signal", JobPhase.OVER, JobEnd.GONE, 0),
        ("deleted_by_its_user", JobPhase.OVER, JobEnd.CANCELLED, 0),
        ("deleted_by_an_admin", JobPhase.OVER, JobEnd.CANCELLED, 0),
        ("deleted_while_held", JobPhase.OVER, JobEnd.CANCELLED, 0),
        ("preempted_by_deletion", JobPhase.OVER, JobEnd.PREEMPTED, 0),
    ],
)
def test_every_state_is_read(name: str, phase: JobPhase, ending: JobEnd | None, restart: int) -> None:
    view = queue(recorded()).poll([ID[name]], 0).jobs[ID[name]]
    assert (view.phase, view.ending, view.restart) == (phase, ending, restart)


@pytest.mark.parametrize(
    ("status", "ending"),
    [
        (-29, JobEnd.WALLTIME),
        (-4, JobEnd.NODE_FAILED),
        (-6, JobEnd.NODE_FAILED),
        (-14, JobEnd.NODE_FAILED),
        (-20, JobEnd.NODE_FAILED),
        (-12, JobEnd.PREEMPTED),
        (-18, JobEnd.PREEMPTED),
        (-1, JobEnd.FAILED),
        (271, JobEnd.GONE),
    ],
)
def test_pbss_own_exit_codes(status: int, ending: JobEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = ANSWERS[ID["failed"]]
    monkeypatch.setitem(ANSWERS, ID["failed"], failed.replace("Exit_status=3", f"Exit_status={status}"))
    assert queue(recorded()).poll([ID["failed"]], 0).jobs[ID["failed"]].ending is ending


def test_times_and_the_reason_of_a_wait_are_read() -> None:
    jobs = queue(recorded()).poll([ID["running"], ID["held"], ID["queue_stopped"]], 0).jobs
    view = jobs[ID["running"]]
    assert (view.walltime_s, view.end_s) == (3600, (view.start_s or 0.0) + 3600)
    details = [jobs[ID[name]].detail for name in ("held", "queue_stopped")]
    assert details == ["held", "Q: Not Running: Queue not started."]
    assert [view.held for view in jobs.values()] == [False, True, False]
    expected_s = time.mktime((2026, 11, 20, 2, 10, 0, 0, 0, -1))
    for state, start_s in (("Q", expected_s), ("W", None), ("H", None)):
        (waits,) = _parsed(
            f"Job Id: 7.pbs|job_state={state}|estimated.start_time=Fri Nov 20 02:10:00 2026|Job_Name=x\n"
        )
        assert _view("7.pbs", waits).start_s == start_s


def test_one_qstat_answers_for_a_hundred_ids() -> None:
    run = recorded()
    assert len(queue(run).poll(list(ANSWERS), 0).jobs) == len(ANSWERS)
    assert sum("-F" in command for command in run.asked) == 1
    assert "999.pbs0" not in queue(run).poll([f"{number}.pbs0" for number in range(800, 1050)], 0).jobs
    assert max(len(command) for command in run.asked) < 110


def test_a_shortened_server_name_and_line_breaks_in_a_value_are_read() -> None:
    shown = answer(ID["running"])
    run = recorded()
    run.answers["qstat"] = shown.replace("PBS_O_QUEUE=", "F=() {\n echo \\| x\n},Q=")
    view = queue(run).poll(["101.pbs0.some.where"], 0).jobs["101.pbs0.some.where"]
    assert view.detail.startswith("R: Job run at")


def test_a_job_of_ours_is_found_by_its_name_and_a_stranger_is_asked_for_once() -> None:
    run = recorded()
    pbs = queue(run)
    assert set(pbs.poll([], 0).jobs) == {ID["running"]}
    pbs.poll([ID["running"]], 0)
    assert sum(FOREIGN in command for command in run.asked) == 1


def test_a_server_without_history_answers_for_living_jobs_and_is_asked_twice_once() -> None:
    run = recorded(Server(history=False))
    pbs = queue(run)
    for _ in range(3):
        assert set(pbs.poll([ID["running"], ID["completed"]], 0).jobs) == {ID["running"]}
    assert sum("-x" in command for command in run.asked) == 1


def test_jobs_of_qselect_are_listed_even_without_an_answer_of_qstat() -> None:
    run = recorded()
    run.answers["qstat"] = ""
    shown = queue(run).poll([ID["running"], ID["held"]], 0)
    assert (shown.jobs, shown.listed) == ({}, {ID["running"]})


@pytest.mark.parametrize(("scope", "others"), [("project", 2), ("user", 1)])
def test_jobs_of_others_that_count_against_the_cap(scope: str, others: int) -> None:
    assert queue(recorded(), SITE.replace(max_jobs_scope=scope)).poll([], 0).others == others


@pytest.mark.parametrize("queue_", ["entrance", "inner", "entrance@pbs1", "preemptable", "gone"])
def test_jobs_of_others_are_counted_in_the_queues_that_ours_are_routed_to(queue_: str) -> None:
    run = recorded()
    shown = queue(run, SITE.replace(queue=queue_, max_jobs_scope="user")).poll([], 0)
    assert (set(shown.jobs), shown.others) == ({ID["running"]}, queue_ != "gone")
    asked = [command[-1] for command in run.asked if command[0] == "qselect"][1:]
    routed = {} if queue_ in ("preemptable", "gone") else QUEUES
    assert (len(asked), set(asked)) == (len({*asked}), {*routed, *({queue_} - {"gone"})})


@pytest.mark.parametrize(
    ("name", "answer", "message"),
    [
        *(("qstat", text, "cannot parse") for text in ("[1]", "{bad", '{"timestamp": 1}')),
        *((name, CommandRefused(name, "cannot connect to server pbs0"), "cannot connect") for name in COMMANDS),
        *((name, CommandRefused(name, "", -9), "exit -9") for name in COMMANDS),
    ],
)
def test_no_answer_and_an_unreadable_one_are_errors(name: str, answer: str | SubmitError, message: str) -> None:
    run = recorded()
    run.answers[name] = answer
    with pytest.raises(SubmitError, match=message):
        queue(run).poll([ID["running"]], 0)


def test_a_job_that_is_over_or_unknown_counts_as_cancelled_and_a_refused_one_does_not() -> None:
    said = "qdel: Unknown Job Id 9.pbs0\nqdel: Job has finished 8.pbs0\nqdel: Server could not connect to MOM 7.pbs0"
    run = recorded()
    run.answers["qdel"] = CommandRefused("qdel", said)
    with pytest.raises(CancelRefused, match=r"^qdel failed: qdel: Server could not connect to MOM 7\.pbs0$") as raised:
        queue(run).cancel(["6.pbs0", "7.pbs0", "8.pbs0", "9.pbs0"])
    assert raised.value.taken == ["6.pbs0", "8.pbs0", "9.pbs0"]


def test_kill_names_the_jobs() -> None:
    run = recorded()
    queue(run).kill(["101.pbs0"])
    assert run.asked == [["qdel", "-W", "force", "101.pbs0"]]
