"""The longest job that Slurm's accounts allow: a longer one is accepted, and then waits for ever."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from pilot.host.commands import Run
from pilot.host.private_folder import user_name
from pilot.provisioning.scheduler_slurm import limit_s
from pilot.site.site import Site


def longest_job(site: Site, partition: str, run: Run) -> tuple[str, float] | None:
    """Who limits the wall time of jobs of ``site`` in ``partition``, and to how many seconds; None: nobody, or limits
    are not enforced. Raises SubmitError if Slurm does not answer. Where several limit it, Slurm takes the first one.
    """
    config = _fields(run(["scontrol", "show", "config"], site.command_timeout_s))
    if "slurmdbd" not in config.get("AccountingStorageType", ""):
        return None
    if not {"limits", "safe"} & set(config.get("AccountingStorageEnforce", "").lower().split(",")):
        return None
    found = ((who, limit_s(text)) for who, text in _limits(site, partition, config.get("ClusterName", ""), run))
    return next(((who, seconds) for who, seconds in found if seconds is not None), None)


def _limits(site: Site, partition: str, cluster: str, run: Run) -> Iterator[tuple[str, str]]:
    """The MaxWall of the partition's QOS, of the job's and of the account, in Slurm's order; "" if there is none."""

    def ask(*command: str) -> list[list[str]]:
        lines = run(["sacctmgr", "-n", "-P", "show", *command], site.command_timeout_s).splitlines()
        return [line.split("|") for line in lines if line]

    def of_qos(name: str) -> Iterator[tuple[str, str]]:
        for (longest,) in ask("qos", "where", f"name={name}", "format=maxwall"):
            yield f"the QOS {name}", longest

    user, limits = user_name(os.geteuid()), "format=partition,defaultqos,maxwall"
    usual = ask("user", "where", f"name={user}", "format=defaultaccount")
    account = site.account or (usual[0][0] if usual else "")
    rows = ask("assoc", "where", f"cluster={cluster}", f"user={user}", f"account={account}", limits)
    own = next((row for row in sorted(rows, reverse=True) if row[0] in (partition, "")), ["", "", ""])
    whole = _fields(run(["scontrol", "show", "partition", partition], site.command_timeout_s))
    if (qos := whole.get("QoS", "N/A")) != "N/A":
        yield from of_qos(qos)
    yield from of_qos(site.qos or own[1] or "normal")
    yield f"the account {account}", own[2]


def _fields(text: str) -> dict[str, str]:
    """The values of scontrol's ``name=value`` or ``name = value``."""
    return dict(re.findall(r"(\w+)\s*=\s*(\S+)", text))
