"""Which nodes of a live scheduler are idle now: Slurm's and PBS's own JSON, read by pure functions."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Iterator
from typing import Any

from pilot.core.errors import SubmitError
from pilot.core.ids import NodeId
from pilot.traces.hostlist import expand

QUERY_LIMIT_S = 60.0
IDLE_STATES = {"IDLE", "PLANNED"}
"""Slurm's states of a node that a job could use at once; PLANNED is reserved for a job that cannot start yet."""
PBS_USABLE = {"free", "job-busy", "job-exclusive"}
"""PBS's states of a node that is up; in the last two, its jobs leave nothing on it free."""
HOLDING_STATES = {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED"}


def query_slurm(preemptable: Collection[str] = ()) -> set[NodeId]:
    """Ask ``sinfo`` and, for nodes that only jobs of ``preemptable`` partitions hold, ``squeue``."""
    idle = slurm_idle(_ask("sinfo", "-N", "--json"))
    return idle | slurm_preemptable(_ask("squeue", "--json"), preemptable) if preemptable else idle


def query_pbs(preemptable: Collection[str] = ()) -> set[NodeId]:
    """Ask ``pbsnodes`` and, for nodes that only jobs of ``preemptable`` queues hold, ``qselect``."""
    jobs = {job for queue in preemptable for job in _answer("qselect", "-s", "RSE", "-q", queue).split()}
    return pbs_idle(_ask("pbsnodes", "-a", "-F", "json"), jobs)


def slurm_idle(sinfo: Any) -> set[NodeId]:
    """Idle nodes in the output of ``sinfo -N --json`` (Slurm 22.05: ``nodes``; since 23.02: ``sinfo``)."""
    return {node for node, states in _slurm_nodes(sinfo) if "IDLE" in states and states <= IDLE_STATES}


def _slurm_nodes(sinfo: Any) -> Iterator[tuple[NodeId, set[str]]]:
    for entry in sinfo.get("nodes", ()):
        yield NodeId(entry["name"]), _states(entry["state"]) | _states(entry.get("state_flags", ()))
    for entry in sinfo.get("sinfo", ()):
        for name in entry["nodes"]["nodes"]:
            yield NodeId(name), _states(entry["node"]["state"])


def slurm_preemptable(squeue: Any, partitions: Collection[str]) -> set[NodeId]:
    """Nodes held by jobs of ``partitions`` and by no other job, from ``squeue --json``."""
    ours: set[NodeId] = set()
    others: set[NodeId] = set()
    for job in squeue["jobs"]:
        if _states(job["job_state"]) & HOLDING_STATES:
            (ours if job["partition"] in partitions else others).update(expand(job.get("nodes") or ""))
    return ours - others


def pbs_idle(pbsnodes: Any, preemptable: Collection[str] = ()) -> set[NodeId]:
    """Idle nodes in the output of ``pbsnodes -a -F json``: used by no jobs, or only by those in ``preemptable`` (ids).

    A node lists a job once for each of its chunks there, as ``ID/CHUNK``.
    """
    usable = ((name, node) for name, node in pbsnodes["nodes"].items() if node.get("state") in PBS_USABLE)
    return {
        NodeId(name)
        for name, node in usable
        if {job.partition("/")[0] for job in node.get("jobs") or ()} <= set(preemptable)
    }


def _states(states: Any) -> set[str]:
    """One state or a list of them: versions differ."""
    return {states.upper()} if isinstance(states, str) else {state.upper() for state in states}


def _ask(*command: str) -> Any:
    """The JSON that ``command`` prints; :class:`SubmitError` (transient) if it cannot be parsed."""
    answer = _answer(*command)
    try:
        return json.loads(answer)
    except json.JSONDecodeError as error:
        raise SubmitError(f"{' '.join(command)}: not valid JSON: {error}", transient=True) from None


def _answer(*command: str) -> str:
    """What ``command`` prints; :class:`SubmitError` (transient) if it does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=QUERY_LIMIT_S, check=False)
    except FileNotFoundError:
        raise SubmitError(f"{command[0]} is not installed here; run this on a login node of the machine") from None
    except subprocess.TimeoutExpired:
        raise SubmitError(f"{command[0]} gave no answer in {QUERY_LIMIT_S:g} s", transient=True) from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise SubmitError(f"{' '.join(command)} failed: {reason}", transient=True)
    return done.stdout
