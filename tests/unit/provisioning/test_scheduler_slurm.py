"""Slurm's answers, recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from pilot.core.errors import SubmitError
from pilot.host.commands import CommandRefused
from pilot.provisioning.scheduler import CancelRefused, JobEnd, JobPhase
from pilot.provisioning.scheduler_slurm import SlurmQueue, excluded
from pilot.site.site import Site
from tests.unit.provisioning.recordings import PREFIX, Recorded, text

SITE = Site(name="x", scheduler="slurm", partition="preempt", account="abc", max_jobs=20)
NOW_S = 1795172720.0
PLANNED = "20|2026-11-20T11:05:27|(null)\n21|2026-11-20T11:35:00|n[1-3]\n18|2026-11-20T11:05:20|n1\n30|N/A|n1\n"
"""Pending jobs of all users; 18 is ours."""
SINFO = "n1 alloc\nn2 idle\nn3 plnd\nn4 plnd\nn5 idle~\nn6 down*\n"


@pytest.fixture(autouse=True)
def recorded_in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The recording's times are UTC; squeue's are local."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def squeue(command: Sequence[str]) -> str:
    if "-A" in command:
        return "12\n21\n22\n23\n"
    return PLANNED if "PD" in command else text("squeue-22.05.txt")


def recorded(**changes: object) -> Recorded:
    answers: dict[str, object] = {"squeue": squeue, "sinfo": SINFO, "sacct": "", "scontrol": ""}
    return Recorded(answers | changes)


def queue(run: Recorded, site: Site = SITE) -> SlurmQueue:
    return SlurmQueue(site, PREFIX, run, user="ada")


def test_every_state_is_read() -> None:
    jobs = queue(recorded()).poll([], NOW_S).jobs
    assert {job: (view.phase, view.ending) for job, view in jobs.items()} == {
        "11": (JobPhase.RUNNING, None),
        "12": (JobPhase.RUNNING, None),
        "13": (JobPhase.OVER, JobEnd.FAILED),
        "14": (JobPhase.OVER, JobEnd.COMPLETED),
        "15": (JobPhase.OVER, JobEnd.WALLTIME),
        "16": (JobPhase.OVER, JobEnd.NODE_FAILED),
        "17": (JobPhase.OVER, JobEnd.CANCELLED),
        "18": (JobPhase.PENDING, None),
        "19": (JobPhase.RUNNING, None),
        "23": (JobPhase.SUSPENDED, None),
    }


def test_the_facts_of_each_job_are_read() -> None:
    jobs = queue(recorded()).poll(["22", "24"], NOW_S).jobs
    assert (jobs["11"].preempt_s, jobs["11"].end_s) == (1795172720.0, 1795172740.0)
    assert (jobs["12"].preempt_s is None, jobs["14"].preempt_s is None) == (True, False), "known after it has left, too"
    assert (jobs["18"].restart, jobs["18"].detail) == (1, "PENDING, BeginTime"), "it was requeued"
    limits = {job: jobs[job].walltime_s for job in ("11", "12", "18", "23")}
    assert limits == {"11": None, "12": 86400 + 1800, "18": 600, "23": 3600}
    assert (jobs["22"].name, jobs["24"].name) == ("mine, by hand", "a|b"), "a requested job, whatever its name"


@pytest.mark.parametrize(("scope", "others"), [("user", 1), ("project", 2)])
def test_jobs_of_others_that_count_against_the_cap(scope: str, others: int) -> None:
    site = SITE.replace(max_jobs_scope=scope)
    assert queue(recorded(), site).poll([], NOW_S).others == others


def test_planned_nodes_and_their_window() -> None:
    shown = queue(recorded()).poll([], NOW_S)
    assert (shown.idle_nodes, shown.planned_nodes) == (1, 2)
    assert shown.window_s == 1795172727 - NOW_S
    assert queue(recorded(sinfo="n1 idle\n")).poll([], NOW_S).window_s is None


@pytest.mark.parametrize(
    ("reason", "held"),
    [
        *((reason, True) for reason in ("JobHeldAdmin", "JobHeldUser", "JobHoldMaxRequeue", "BeginTime", "Dependency")),
        *((reason, True) for reason in ("launch failed requeued held", "job_requeued_in_held_state")),
        *((reason, False) for reason in ("Resources", "Priority", "QOSUsageThreshold", "PartitionDown", "None")),
    ],
)
def test_which_reasons_hold_one_job_only(reason: str, held: bool) -> None:
    run = recorded(squeue=lambda command: squeue(command).replace("BeginTime", reason))
    views = queue(run).poll([], NOW_S).jobs
    assert {job for job, view in views.items() if view.held} == ({"18"} if held else set())


def reservation(name: str, minutes: float, nodes: str, flags: str = "SPEC_NODES", users: str = "eve") -> str:
    """A line of ``scontrol show reservation -o``."""
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW_S + 60 * minutes))
    return (
        f"ReservationName={name} StartTime={start} EndTime=2027-12-02T10:32:58 Duration=2-12:00:00 Nodes={nodes} "
        f"NodeCnt=6 Features=(null) PartitionName=(null) Flags={flags} Users={users} Accounts=(null) State=INACTIVE\n"
    )


ALL = "n[1-4]"
SOON = reservation("r", 20, "n[3-4]")


@pytest.mark.parametrize(
    ("reservations", "idle", "planned", "window_min"),
    [
        ("No reservations in the system\n", 4, 0, None),
        (reservation("r", 20, ALL, "MAINT,SPEC_NODES,ALL_NODES", "ada"), 0, 4, 20),
        (SOON, 2, 2, 20),
        (SOON + reservation("s", 15, "n4"), 2, 2, 15),
        (SOON + reservation("s", 2, "n[1-2]"), 0, 2, 20),  # too soon for any pilot: those nodes are of no use
        (reservation("r", 90, ALL), 4, 0, None),  # after a pilot of full wall time
        (reservation("r", -5, ALL), 4, 0, None),
        (reservation("r", 20, "(null)"), 4, 0, None),  # of licenses
        (reservation("mine", 20, ALL), 4, 0, None),
        (reservation("r", 20, ALL, "MAGNETIC", "bob,ada"), 4, 0, None),
        (reservation("r", 20, ALL, "MAGNETIC"), 0, 4, 20),
    ],
)
def test_idle_nodes_that_are_reserved(reservations: str, idle: int, planned: int, window_min: float | None) -> None:
    site = SITE.replace(walltime_min="00:05:00", scheduler_options="#SBATCH -C gpu --reservation 'mine,other'")
    run = recorded(sinfo="n1 idle\nn2 idle\nn3 idle\nn4 idle\n", scontrol=reservations)
    shown = queue(run, site).poll([], NOW_S)
    assert (shown.idle_nodes, shown.planned_nodes, shown.trouble) == (idle, planned, "")
    assert shown.window_s == (None if window_min is None else 60 * window_min)


def test_reservations_that_are_not_known_are_trouble() -> None:
    shown = queue(recorded(scontrol=SubmitError("scontrol failed: no"))).poll([], NOW_S)
    assert (shown.idle_nodes, shown.trouble) == (1, "reservations are not known: scontrol failed: no")


def test_a_job_planned_on_the_nodes_of_a_running_one_is_shown_with_it() -> None:
    jobs = queue(recorded()).poll([], NOW_S).jobs
    assert {job for job, view in jobs.items() if view.planned_s is not None} == {"11", "12", "19"}
    assert {view.planned_s for view in jobs.values()} == {None, 1795174500.0}


def test_one_squeue_for_our_jobs_one_for_pending_jobs_and_one_sinfo() -> None:
    run = recorded(sinfo="n1 idle\n")
    queue(run).poll([str(job) for job in range(11, 20)], NOW_S)
    assert (run.times("squeue"), run.times("sinfo"), run.times("scontrol"), run.times("sacct")) == (2, 1, 1, 0)
    assert run.asked[0][:7] == ["squeue", "-h", "-a", "-t", "all", "-u", "ada"]


@pytest.mark.parametrize("lacks", ["", "Restarts", "Timelimit"])
def test_accounting_is_asked_once_for_what_it_has_of_jobs_that_squeue_forgot(lacks: str) -> None:
    fields = "JobIDRaw State NodeList Start End Timelimit Restarts Account".replace(lacks or " Account", "")
    rows = [["7", "PREEMPTED", "n3"], ["8", "CANCELLED by 1000", "n4"], ["9", "RUNNING", "n5"]]
    more = {"Start": "2026-11-20T11:05:20", "End": "2026-11-20T11:05:27", "Timelimit": "01:00:00", "Restarts": "1"}

    def sacct(command: Sequence[str]) -> str:
        if "--helpformat" in command:
            return fields.replace(" ", "   \n")
        (asked,) = (word.removeprefix("--format=").split(",") for word in command if word.startswith("--format="))
        assert set(asked) == set(fields.split()) - {"Account"}
        return "".join("|".join([*row, *(more[name] for name in asked[3:])]) + "\n" for row in rows)

    run = recorded(sacct=sacct)
    slurm = queue(run)
    jobs = [slurm.poll(["7", "8", "9", "10"], NOW_S).jobs for _ in range(2)][1]
    assert (jobs["7"].ending, jobs["8"].ending) == (JobEnd.PREEMPTED, JobEnd.CANCELLED)
    assert (jobs["7"].end_s or 0) - (jobs["7"].start_s or 0) == 7
    assert (jobs["7"].walltime_s, jobs["7"].restart) == (
        None if lacks == "Timelimit" else 3600,
        int(lacks != "Restarts"),
    )
    assert not {"9", "10"} & jobs.keys(), "what squeue does not list does not live"
    assert run.times("sacct") == 3


def test_a_command_that_does_not_answer() -> None:
    silent = SubmitError("it did not answer within 30 s")
    with pytest.raises(SubmitError, match="did not answer"):
        queue(recorded(squeue=silent)).poll([], NOW_S)
    shown = queue(recorded(sacct=silent)).poll(["7"], NOW_S)
    assert ("7" in shown.jobs, shown.trouble) == (False, f"how jobs ended is not known: {silent}")
    none = CommandRefused("sacct", "Slurm accounting storage is disabled")
    assert queue(recorded(sacct=none)).poll(["7"], NOW_S).trouble == "", "there is no accounting"
    shown = queue(recorded(sinfo=silent)).poll([], NOW_S)
    assert (shown.trouble, shown.idle_nodes, len(shown.jobs)) == (str(silent), None, 10)


@pytest.mark.parametrize("answer", ["[]", '{"jobs": 3}', "slurm_load_jobs error"])
def test_an_answer_that_cannot_be_read_is_an_error(answer: str) -> None:
    with pytest.raises(SubmitError, match="cannot parse"):
        queue(recorded(squeue=answer)).poll([], NOW_S)


def test_an_unknown_state_is_alive() -> None:
    run = recorded(squeue=text("squeue-22.05.txt").replace("CANCELLED", "SOMETHING_NEW"))
    assert queue(run).poll([], NOW_S).jobs["17"].phase is JobPhase.RUNNING


def test_kill_names_the_jobs() -> None:
    run = recorded(scancel="")
    queue(run).kill(["11", "12"])
    assert run.asked == [["scancel", "--full", "--signal=KILL", "11", "12"]]


def test_jobs_are_cancelled_in_batches_and_one_that_is_over_already_counts_as_cancelled() -> None:
    def scancel(command: Sequence[str]) -> str:
        if "7" in command:
            raise CommandRefused("scancel", "scancel: error: Kill job error on job id 7: Invalid job id specified\n")
        if "108" in command:
            raise CommandRefused("scancel", "scancel: error: Kill job error on job id 108: Access/permission denied\n")
        return ""

    run = recorded(scancel=scancel)
    jobs = [str(number) for number in range(250)]
    with pytest.raises(CancelRefused, match=r"^scancel failed: .* job id 108: Access/permission denied$") as raised:
        queue(run).cancel(jobs)
    assert raised.value.taken == [job for job in jobs if job != "108"]
    assert run.times("scancel") == 3
    assert queue(run).cancel(["6", "7"]) == ["6", "7"]


@pytest.mark.parametrize(
    ("said", "message"), [("scancel: error: Unable to contact slurm controller", "Unable to"), ("", "exit 1")]
)
def test_a_failure_that_names_no_job_concerns_all(said: str, message: str) -> None:
    with pytest.raises(CancelRefused, match=f"^scancel failed: .*{message}") as raised:
        queue(recorded(scancel=CommandRefused("scancel", said))).cancel(["11", "12"])
    assert raised.value.taken == []


def test_nodes_that_are_not_ours_are_excluded_and_not_counted_as_idle() -> None:
    few = SITE.replace(only_nodes="n[1-2]")
    shown = queue(recorded(), few).poll([], NOW_S)
    assert (shown.idle_nodes, shown.planned_nodes) == (1, 0)
    run = recorded(sinfo="n1\nn2\nn3\nn4\nn4\n", scontrol=lambda command: f"<{command[-1]}>\n")
    assert excluded(few, run) == "<n3,n4>"
    assert excluded(SITE.replace(only_nodes="n*"), run) == ""
    with pytest.raises(SubmitError, match=r"no node of partition preempt matches --only-nodes m\*"):
        excluded(SITE.replace(only_nodes="m*"), run)
