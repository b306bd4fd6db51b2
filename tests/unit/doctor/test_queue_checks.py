"""What ``pilot doctor`` concludes from a scheduler's answers about a queue; PBS's are those of the lab of
``tests/pbs``.
"""

from __future__ import annotations

import grp
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pilot.core.errors import SubmitError
from pilot.doctor import queue_checks
from pilot.doctor.finding import Grade
from pilot.doctor.queue_checks import shows_kill_delay
from pilot.host.commands import CommandRefused
from pilot.host.private_folder import user_name
from pilot.site.site import Site

HERE = Path()
CLOSED = "jobs there wait or are refused"
SLURM = Site(name="there", scheduler="slurm", partition="preempt", walltime="02:00:00")
PBS = Site(name="there", scheduler="pbspro", queue="preemptable", walltime="02:00:00", max_jobs=20)
LSF = Site(name="there", scheduler="lsf", queue="killable")

QUEUE = """\
Queue: preemptable
    queue_type = Execution
    Priority = 10
    total_jobs = 2
    state_count = Transit:0 Queued:0 Held:0 Waiting:0 Running:2 Exiting:0 Begun
\t:0
    resources_assigned.ncpus = 8
    resources_assigned.nodect = 2
    enabled = True
    started = True
"""
TEN_S = "    kill_delay = 10\n"
SCHED = """\
Sched default
    sched_host = pbs0
    sched_cycle_length = 00:20:00
    preempt_queue_prio = 150
    preempt_prio = express_queue, normal_jobs
    preempt_order = {order}
    preempt_sort = min_time_since_start
"""


def seen(site: Site, run: Callable[[Sequence[str], float], str], grade: Grade) -> list[str]:
    """The findings of a grade; each except the good ones says what to do."""
    found = list(queue_checks.scheduler(site, HERE, run))
    assert all(finding.remedy for finding in found if finding.grade is not Grade.OK)
    return [finding.seen for finding in found if finding.grade is grade]


def answering(answer: str) -> Callable[[Sequence[str], float], str]:
    return lambda _command, _limit_s: answer


def pbs(queue: str = "", order: str = "D") -> Callable[[Sequence[str], float], str]:
    def run(command: Sequence[str], _limit_s: float) -> str:
        if command[0] == "qmgr":
            return SCHED.format(order=order)
        return QUEUE + queue

    return run


def refusing(_command: Sequence[str], _limit_s: float) -> str:
    raise SubmitError("qstat failed: qstat: no server")


@pytest.mark.parametrize(
    ("partition", "answer", "grade", "message"),
    [
        ("preempt", "preempt|up|6|infinite|CANCEL\n", Grade.OK, "preempt is up, with 6 nodes"),
        ("preempt", "preempt|down|6|infinite|CANCEL\n", Grade.FAIL, f"preempt is down: {CLOSED}"),
        (
            "preempt",
            "preempt|drain|6|1:00:00|CANCEL\n",
            Grade.FAIL,
            f"preempt is drain: {CLOSED}",
        ),
        (
            "preempt",
            "preempt|up|6|1:00:00|OFF\n",
            Grade.FAIL,
            "jobs may run for 01:00:00 there, but the site file requests ",
        ),
        (
            "preempt",
            "preempt|up|6|2-00:00:00|SUSPEND\n",
            Grade.WARN,
            "pilots are suspended, not ended",
        ),
        ("preempt", "\n", Grade.FAIL, "Slurm has no partition preempt"),
        (
            None,
            "high|up|6|1:00|OFF\nnormal*|up|4|infinite|OFF\n",
            Grade.OK,
            "the default partition is up, with 4 nodes",
        ),
        (None, "high|up|6|1:00|OFF\n", Grade.FAIL, "Slurm has no default partition"),
    ],
)
def test_slurms_partition(partition: str | None, answer: str, grade: Grade, message: str) -> None:
    assert any(line.startswith(message) for line in seen(SLURM.replace(partition=partition), answering(answer), grade))


def accounts(enforced: str, partition_qos: str, **max_walls: str) -> Callable[[Sequence[str], float], str]:
    """A Slurm whose accounts limit the wall time, by QOS, or by ``assoc`` in this partition."""

    def run(command: Sequence[str], _limit_s: float) -> str:
        match command[0], command[2] if len(command) > 2 else "":
            case "sinfo", _:
                return "preempt*|up|6|infinite|CANCEL\n"
            case "scontrol", "config":
                names = ("AccountingStorageType   = accounting_storage/slurmdbd", "ClusterName             = one")
                return "\n".join([*names, f"AccountingStorageEnforce = {enforced}"])
            case "scontrol", "partition":
                return f"PartitionName=preempt\n   AllowQos=ALL QoS={partition_qos}\n"
        match command[4]:
            case "user":
                return "physics\n"
            case "assoc":
                return f"|scavenge|\npreempt|scavenge|{max_walls.get('assoc', '')}\nhigh||00:01:00\n"
        name = command[6].removeprefix("name=")
        return f"{max_walls.get(name, '')}\n"

    return run


@pytest.mark.parametrize(
    ("enforced", "partition_qos", "max_walls", "who"),
    [
        ("associations,limits,qos", "N/A", {"scavenge": "1:00:00", "assoc": "00:30:00"}, "the QOS scavenge"),
        ("associations,limits,safe", "part", {"part": "1:00:00", "scavenge": "00:30:00"}, "the QOS part"),
        ("associations,limits", "N/A", {"scavenge": "1-00:00:00", "assoc": "00:30:00"}, ""),
        ("associations,limits", "N/A", {"assoc": "1:00:00"}, "the account physics"),
        ("associations", "N/A", {"assoc": "1:00:00"}, ""),
        ("none", "part", {"part": "1:00:00"}, ""),
    ],
)
def test_the_wall_time_that_slurms_accounts_allow(
    enforced: str, partition_qos: str, max_walls: dict[str, str], who: str
) -> None:
    found = seen(SLURM, accounts(enforced, partition_qos, **max_walls), Grade.FAIL)
    says = f"jobs may run for 01:00:00 there, says {who}, but the site file requests 02:00:00"
    assert found == ([says] if who else [])


def test_a_pbs_queue_that_runs_pilots() -> None:
    assert seen(PBS, pbs(TEN_S), Grade.OK)[1:] == [
        "queue preemptable accepts and starts jobs",
        "PBS kills a preempted job 10 s after TERM, and the site file assumes 8 s",
        "pilots can be preempted (preempt_order = D)",
    ]
    assert seen(PBS, pbs(TEN_S), Grade.FAIL) + seen(PBS, pbs(TEN_S), Grade.WARN) == []


def test_a_pbs_queue_that_does_not_show_its_kill_delay() -> None:
    assert "queue preemptable shows no kill_delay, so PBS's default is assumed" in "\n".join(seen(PBS, pbs(), Grade.OK))
    (line,) = seen(PBS.replace(grace_s=30), pbs(), Grade.FAIL)
    assert line.startswith("PBS kills a preempted job 10 s after TERM, and the site file assumes 30 s")
    assert [shows_kill_delay(PBS, run) for run in (pbs(), pbs(TEN_S), refusing)] == [False, True, False]


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ("    enabled = False\n", "queue preemptable accepts no jobs (enabled = False)"),
        ("    started = False\n", "queue preemptable is stopped (started = False): jobs wait"),
        ("    acl_user_enable = True\n    acl_users = bob\n", "queue preemptable is closed to {user} (acl_users: bob)"),
        ("    acl_user_enable = True\n    acl_users = -{user},+\n", "queue preemptable is closed to {user}"),
        ("    acl_user_enable = True\n", "queue preemptable is closed to {user}"),
        ("    acl_group_enable = True\n    acl_groups = nobodys\n", "queue preemptable is closed to "),
        (
            "    resources_max.walltime = 01:00:00\n",
            "jobs may run for 01:00:00 there, but the site file requests 02:00:00",
        ),
        ("    kill_delay = 5\n", "PBS kills a preempted job 5 s after TERM, and the site file assumes 8 s"),
    ],
)
def test_a_pbs_queue_that_does_not_run_pilots(queue: str, message: str) -> None:
    user = user_name(os.getuid())
    (line,) = seen(PBS, pbs(queue.format(user=user)), Grade.FAIL)
    assert line.startswith(message.format(user=user))


def test_a_queue_that_is_open_to_this_user_by_name() -> None:
    entries = f"    acl_user_enable = True\n    acl_users = bob,{user_name(os.getuid())}@*\n"
    assert seen(PBS, pbs(entries), Grade.FAIL) == []
    group = grp.getgrgid(os.getgid()).gr_name
    assert seen(PBS, pbs(f"    acl_group_enable = True\n    acl_groups = x,{group}\n"), Grade.FAIL) == []


LIMITS = [
    "max_run = [u:PBS_GENERIC=2]",
    "max_run = [o:PBS_ALL=2]",
    "max_user_run = 2",
    "max_queued = [u:PBS_GENERIC=2]",
]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_on_a_users_jobs(limit: str) -> None:
    (line,) = seen(PBS, pbs(f"    {limit}\n"), Grade.WARN)
    assert line.startswith("queue preemptable allows 2 jobs (")


@pytest.mark.parametrize(
    ("order", "requeue", "grade"),
    [
        *[("R", False, Grade.FAIL), ("R", True, Grade.OK), ("CR", False, Grade.FAIL), ("SCR", False, Grade.WARN)],
        *[("C", False, Grade.FAIL), ("C", True, Grade.FAIL), ("CD", False, Grade.OK), ("D 50 C", True, Grade.FAIL)],
        *[("DS", False, Grade.OK), ("RS", True, Grade.OK), ("RS", False, Grade.WARN)],
        *[("R 80 D", True, Grade.OK), ("D 80 CR", False, Grade.FAIL), ("D 80 S", False, Grade.WARN)],
    ],
)
def test_how_pbs_preempts(order: str, requeue: bool, grade: Grade) -> None:
    assert any(f"preempt_order = {order}" in line for line in seen(PBS.replace(requeue=requeue), pbs("", order), grade))


def test_a_queue_whose_jobs_preempt_others() -> None:
    (line,) = seen(PBS, pbs("    Priority = 150\n"), Grade.FAIL)
    assert line.startswith("jobs in queue preemptable preempt others (its priority is 150 or more)")
    assert seen(PBS, pbs("    Priority = 149\n"), Grade.FAIL) == []


ENTRANCE = (
    "Queue: entrance\n    queue_type = Route\n    route_destinations = {}\n    enabled = True\n    started = True\n"
)
INNER = {
    "long": "    kill_delay = 20\n    max_run = [u:PBS_GENERIC=2]\n",
    "short": "    kill_delay = 5\n    resources_max.walltime = 01:00:00\n",
    "bobs": "    kill_delay = 5\n    acl_user_enable = True\n    acl_users = bob\n",
    "off": "    kill_delay = 5\n    enabled = False\n",
}


def routing(*to: str) -> Callable[[Sequence[str], float], str]:
    def run(command: Sequence[str], _limit_s: float) -> str:
        if command[0] == "qmgr":
            return SCHED.format(order="D")
        if command[-1] == "gone":
            raise CommandRefused("qstat", "qstat: Unknown queue gone", 170)
        return ENTRANCE.format(",".join(to)) if command[-1] == "entrance" else QUEUE + INNER[command[-1]]

    return run


def test_a_routing_queue_is_as_the_queues_that_pilots_get_to() -> None:
    site, run = PBS.replace(queue="entrance"), routing(*INNER, "gone")
    assert seen(site, run, Grade.OK)[1:-1] == [
        "queue entrance accepts and starts jobs",
        "queue entrance passes pilots on to long",
        "queue long accepts and starts jobs",
        "PBS kills a preempted job 20 s after TERM, and the site file assumes 8 s",
    ]
    assert [line.partition(" (")[0] for line in seen(site, run, Grade.WARN)] == ["queue long allows 2 jobs"]
    assert seen(site, run, Grade.FAIL) == []
    assert shows_kill_delay(site, run)


def test_a_routing_queue_without_a_queue_for_pilots() -> None:
    (line,) = seen(PBS.replace(queue="entrance"), routing("short", "bobs", "off", "gone"), Grade.FAIL)
    assert line == "queue entrance passes pilots on to no queue that is open to us and allows their wall time"


def test_a_queue_that_is_not_there_or_not_named() -> None:
    assert seen(PBS.replace(queue="gone"), routing(), Grade.FAIL) == ["PBS has no queue gone"]
    assert seen(PBS, refusing, Grade.FAIL) == ["qstat failed: qstat: no server"]
    assert seen(PBS.replace(queue=None), pbs(), Grade.WARN) == ["the site file names no queue"]


@pytest.mark.parametrize(("status", "grade"), [("Open:Active", Grade.OK), ("Closed:Active", Grade.FAIL)])
def test_queues_of_lsf(status: str, grade: Grade) -> None:
    answer = f"QUEUE_NAME PRIO STATUS MAX JL/U JL/P JL/H NJOBS PEND RUN SUSP\nkillable 30 {status} - - - - 0 0 0 0\n"
    assert any(line.startswith("queue killable ") for line in seen(LSF, answering(answer), grade))


@pytest.mark.skipif(shutil.which("bsub") is not None, reason="LSF is here")
def test_a_scheduler_that_is_not_here_and_a_site_that_is_no_more() -> None:
    site = LSF.replace(retired="decommissioned")
    found = [f.seen for f in queue_checks.scheduler(site, HERE) if f.grade is Grade.FAIL]
    assert found[0] == "there was retired: decommissioned"
    assert found[1].startswith("not on this host's PATH: bsub")
