"""Check the site file's scheduler and queue against the scheduler's answers: would pilots run there, how long, and
would they be preemptable?
"""

from __future__ import annotations

import grp
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pilot.core.errors import SubmitError
from pilot.doctor.finding import Finding, fail, ok, ok_if, warn
from pilot.doctor.slurm_limits import longest_job
from pilot.host.commands import Run, run_command
from pilot.host.private_folder import user_name
from pilot.provisioning.scheduler_pbs import attributes, queues, walltime_s
from pilot.provisioning.scheduler_slurm import limit_s
from pilot.site.site import Site, walltime_text

_COMMANDS: dict[str, Sequence[str]] = {
    "local": (),
    "slurm": ("sbatch", "squeue", "sinfo", "scancel", "sacct"),
    "pbspro": ("qsub", "qselect", "qstat", "qdel"),
    "lsf": ("bsub", "bjobs", "bqueues", "bkill"),
}
_ok, _warn, _fail = (partial(grade, "scheduler") for grade in (ok, warn, fail))
_ASK = "ask the admins, or choose another queue"
_KILL_DELAY_S = 10.0
"""PBS's default for a queue without its own (PBS reference guide, queue attributes)."""
_EXPRESS = 150
"""PBS's default for ``preempt_queue_prio``."""


def scheduler(site: Site, _run_dir: Path, run: Run = run_command) -> Iterator[Finding]:
    """Check the scheduler's commands and the queue. ``run`` runs a command (tests pass recorded answers)."""
    if site.retired:
        yield _fail(f"{site.name} was retired: {site.retired}", "use this site for replays only")
    if not (commands := _COMMANDS[site.scheduler]):
        yield _ok("none: pilots are local processes")
        return
    if run is run_command and (missing := [name for name in commands if shutil.which(name) is None]):
        remedy = "run this on a login node, with the scheduler's module loaded"
        yield _fail(f"not on this host's PATH: {', '.join(missing)}", remedy)
        return
    yield _ok(f"{site.scheduler}'s commands are installed")
    try:
        yield from {"slurm": _slurm, "pbspro": _pbs, "lsf": _lsf}[site.scheduler](site, run)
    except SubmitError as error:
        yield _fail(str(error), "is the scheduler running, and does the queue in the site file exist?")


# --- Slurm


def _slurm(site: Site, run: Run) -> Iterator[Finding]:
    which = ["-p", site.partition] if site.partition else []
    columns = ["sinfo", "-h", "-o", "%P|%a|%D|%l|%M", *which]
    rows = [line.split("|") for line in run(columns, site.command_timeout_s).split()]
    named = site.partition or "the default partition"
    row = next((row for row in rows if site.partition or row[0].endswith("*")), None)
    if row is None:
        seen = f"Slurm has no partition {site.partition}" if site.partition else "Slurm has no default partition"
        yield _fail(seen, "correct partition in the site file; sinfo -s lists them")
        return
    name, state, nodes, longest, preemption = row
    if state != "up":
        yield _fail(f"{named} is {state}: jobs there wait or are refused", _ASK)
    else:
        yield _ok(f"{named} is up, with {nodes} nodes")
    yield from _long_enough(site, limit_s(longest))
    try:
        who, longest_s = longest_job(site, name.rstrip("*"), run) or ("", None)
    except SubmitError as error:
        yield _warn(f"the limits of Slurm's accounts are not known: {error}", "ask the admins for MaxWall")
    else:
        yield from _long_enough(site, longest_s, who)
    if preemption.upper().startswith("SUSPEND"):
        yield _suspends(f"{named} has PreemptMode={preemption}")


# --- PBS


def _pbs(site: Site, run: Run) -> Iterator[Finding]:
    if site.queue is None:
        yield _unnamed()
        return
    found = queues(site, run)
    if site.queue not in found:
        yield _fail(f"PBS has no queue {site.queue}", "correct queue in the site file; qstat -Q lists them")
        return
    yield from _open(site.queue, found[site.queue])
    yield from _long_enough(site, _longest_s(found[site.queue]))
    if _routes(found[site.queue]):
        found = {name: queue for name, queue in found.items() if not _routes(queue) and _takes(site, queue)}
        to = ", ".join(found) or "no queue that is open to us and allows their wall time"
        yield ok_if(bool(found), "scheduler", f"queue {site.queue} passes pilots on to {to}", _ASK, fail)
        for name, queue in found.items():
            yield from _open(name, queue)
    for name, queue in found.items():
        yield from _within_limits(site, name, queue)
    delays_s = {name: _kill_delay_s(queue) for name, queue in found.items()}
    for name in [name for name, delay_s in delays_s.items() if delay_s is None]:
        yield _ok(f"queue {name} shows no kill_delay, so PBS's default is assumed; --pilots 1 measures it")
    if delays_s:
        yield grace(site, min(_KILL_DELAY_S if delay_s is None else delay_s for delay_s in delays_s.values()))
    yield from _preemptable(site, found, run)


def shows_kill_delay(site: Site, run: Run = run_command) -> bool:
    """Whether each queue that pilots may run in shows how long a job lives after TERM."""
    try:
        found = queues(site, run)
    except SubmitError:
        return False
    delays_s = [_kill_delay_s(queue) for queue in found.values() if not _routes(queue)]
    return bool(delays_s) and None not in delays_s


def _routes(queue: Mapping[str, str]) -> bool:
    return queue.get("queue_type") == "Route"


def _takes(site: Site, queue: Mapping[str, str]) -> bool:
    """Whether the queue accepts pilots that are routed to it."""
    longest_s = _longest_s(queue)
    long_enough = longest_s is None or longest_s >= site.walltime_s
    return queue.get("enabled") != "False" and not _closed_to_us(queue) and long_enough


def _longest_s(queue: Mapping[str, str]) -> float | None:
    return walltime_s(queue.get("resources_max.walltime", ""))


def _kill_delay_s(queue: Mapping[str, str]) -> float | None:
    return float(queue["kill_delay"]) if "kill_delay" in queue else None


def grace(site: Site, delay_s: float) -> Finding:
    """Compare the site file's grace with PBS's."""
    seen = f"PBS kills a preempted job {delay_s:g} s after TERM, and the site file assumes {site.grace_s:g} s"
    remedy = f"set grace_s={max(0.0, delay_s - 2):g} in the site file: less than kill_delay"
    return ok_if(site.grace_s <= delay_s, "scheduler", seen, remedy, fail)


def _open(name: str, queue: Mapping[str, str]) -> Iterator[Finding]:
    """Check that the queue accepts jobs, starts them, and is open to this user."""
    closed = [
        *(["accepts no jobs (enabled = False)"] if queue.get("enabled") == "False" else []),
        *(["is stopped (started = False): jobs wait"] if queue.get("started") == "False" else []),
        *_closed_to_us(queue),
    ]
    if closed:
        yield _fail(f"queue {name} {'; '.join(closed)}", _ASK)
    else:
        yield _ok(f"queue {name} accepts and starts jobs")


def _closed_to_us(queue: Mapping[str, str]) -> list[str]:
    closed = []
    for kind, names in (("user", {user_name(os.getuid())}), ("group", _groups())):
        listed = queue.get(f"acl_{kind}s", "")
        if queue.get(f"acl_{kind}_enable") == "True" and not _admits(listed, names):
            closed.append(f"is closed to {', '.join(sorted(names))} (acl_{kind}s: {listed})")
    return closed


def _groups() -> set[str]:
    known = {group.gr_gid: group.gr_name for group in grp.getgrall()}
    return {known.get(gid, str(gid)) for gid in (os.getgid(), *os.getgroups())}


def _admits(listed: str, names: Collection[str]) -> bool:
    """Whether an access list admits one of ``names``: its first matching entry decides; without one, it does not."""
    entries = (entry.strip().partition("@")[0] for entry in listed.split(",") if entry.strip())
    verdict = next((entry for entry in entries if entry.lstrip("+-") in (*names, "*", "")), "-")
    return not verdict.startswith("-")


def _within_limits(site: Site, name: str, queue: Mapping[str, str]) -> Iterator[Finding]:
    """Check the limits on a user's jobs, or on all jobs: ``[u:PBS_GENERIC=10]``, ``[o:PBS_ALL=10]``, or the older
    ``max_user_run``."""
    user = user_name(os.getuid())
    for limit in ("max_run", "max_queued", "max_user_run"):
        text = queue.get(limit, "")
        limits = re.findall(rf"(?:u:(?:{re.escape(user)}|PBS_GENERIC)|o:PBS_ALL)=(\d+)", text) or re.findall(
            r"^\d+$", text
        )
        if limits and (least := min(map(int, limits))) < site.max_jobs:
            seen = f"queue {name} allows {least} jobs ({limit} = {text}), the site file {site.max_jobs}"
            yield _warn(seen, f"set max_jobs={least} in the site file: further jobs would wait or be refused")


def _preemptable(site: Site, found: Mapping[str, Mapping[str, str]], run: Run) -> Iterator[Finding]:
    """Check that the scheduler can preempt pilots in the queues ``found``; any user can query how."""
    try:
        sched = attributes(run(["qmgr", "-c", "list sched"], site.command_timeout_s))
    except SubmitError as error:
        yield _warn(f"cannot find out how pilots are preempted: {error}", "ask the admins for preempt_order")
        return
    express = int(sched.get("preempt_queue_prio", _EXPRESS))
    for name in [name for name, queue in found.items() if int(queue.get("Priority", 0)) >= express]:
        seen = f"jobs in queue {name} preempt others (its priority is {express} or more) and are not preempted"
        yield _fail(seen, "choose another queue: pilots are for one that gives way")
    order = sched.get("preempt_order", "")
    ends = "SDR" if site.requeue else "SD"
    # PBS tries one way after the other. Which ones may depend on the share of the wall time that is left: "R 50 D".
    tried = re.findall("[SCRD]+", order)
    works = [next((way for way in ways if way in ends), "") for ways in tried]
    useless = [ways for ways, way in zip(tried, works, strict=True) if not way]
    if any("R" in ways for ways in useless):
        seen = f"PBS preempts by requeueing (preempt_order = {order}), which requeue=False forbids: pilots would "
        yield _fail(f"{seen}never be preempted", "set requeue=True in the site file")
    elif useless:
        seen = f"PBS preempts by checkpointing only (preempt_order = {order}), which pilots do not support: they would "
        yield _fail(f"{seen}never be preempted", _ASK)
    elif "S" in works:
        yield _suspends(f"preempt_order = {order}")
    elif order:
        yield _ok(f"pilots can be preempted (preempt_order = {order})")


# --- LSF


def _lsf(site: Site, run: Run) -> Iterator[Finding]:
    """Check the queue; bqueues fails if it does not exist."""
    if site.queue is None:
        yield _unnamed()
        return
    output = run(["bqueues", site.queue], site.command_timeout_s)
    status = next((word for word in output.split() if word.startswith(("Open:", "Closed:"))), "")
    if status and status != "Open:Active":
        yield _fail(f"queue {site.queue} is {status}: jobs there wait or are refused", _ASK)
    else:
        yield _ok(f"queue {site.queue} exists")


# --- all schedulers


def _unnamed() -> Finding:
    return _warn("the site file names no queue", "jobs go to the default queue, which is rarely preemptable")


def _long_enough(site: Site, longest_s: float | None, who: str = "") -> Iterator[Finding]:
    if longest_s is not None and longest_s < site.walltime_s:
        by = f", says {who}" if who else ""
        seen = f"jobs may run for {walltime_text(longest_s)} there{by}, but the site file requests {site.walltime}"
        yield _fail(seen, "set a shorter walltime in the site file: such jobs never start")


def _suspends(why: str) -> Finding:
    remedy = "they are replaced meanwhile, but keep their memory; prefer a queue that ends them"
    return _warn(f"pilots are suspended, not ended, when preempted ({why})", remedy)
