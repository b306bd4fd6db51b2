"""What the site's file says about this host, its network and its batch scheduler, against what is there."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path

import psutil

from pilot.core.errors import PilotError, SubmitError
from pilot.doctor.finding import Finding, fail, ok, warn
from pilot.io.addresses import advertise_address, bind_address, own_addresses
from pilot.io.rundir import RunDir, owner
from pilot.io.site import Site
from pilot.provisioning.scheduler import Run, run_command

_COMMANDS: dict[str, Sequence[str]] = {
    "local": (),
    "slurm": ("sbatch", "squeue", "sinfo", "scancel", "sacct"),
    "pbspro": ("qsub", "qselect", "qstat", "qdel"),
    "lsf": ("bsub", "bjobs", "bqueues", "bkill"),
}


def network(site: Site, run_dir: Path) -> Iterator[Finding]:
    """Interfaces, the port, and the address that pilots are told."""
    yield from _interfaces(site)
    try:
        yield _port(site, run_dir)
        yield _advertised(site)
    except PilotError as error:
        yield fail("network", str(error), "correct bind_interface or advertise_interface in the site file")


def _interfaces(site: Site) -> Iterator[Finding]:
    there = psutil.net_if_stats()
    if site.interface is None:
        return
    if site.interface not in there:
        seen = f"this host has no interface {site.interface}, which groups use; it has {', '.join(sorted(there))}"
        yield warn("network", seen, "nodes must have it: run pilot doctor inside a job too")
    elif not there[site.interface].isup:
        yield fail("network", f"interface {site.interface} is down", "choose another interface in the site file")
    else:
        yield ok("network", f"interface {site.interface} is up")


def _port(site: Site, run_dir: Path) -> Finding:
    """Whether the coordinator can listen where the site says."""
    address = bind_address(site)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, site.port))
        except OSError as error:
            if pid := owner(RunDir(run_dir)):
                return ok("network", f"port {site.port} on {address} is in use; this pool is up (process {pid})")
            seen = f"the coordinator cannot listen on {address}, port {site.port}: {error.strerror}"
            return fail("network", seen, "set port=0 (any) or another one in the site file, or another bind_address")
    return ok("network", f"the coordinator can listen on {address}, {f'port {site.port}' if site.port else 'any port'}")


def _advertised(site: Site) -> Finding:
    """Whether nodes can make something of the address that they are told. Groups on ``lo`` are on this machine."""
    name = advertise_address(site)
    try:
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return fail("network", f"the name {name} has no address", "set advertise_interface in the site file")
    seen = f"pilots are told {name} ({', '.join(addresses)})"
    remedy = "set advertise_interface in the site file"
    if site.scheduler == "local" or site.interface == "lo":
        return ok("network", seen)
    if all(ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        return fail("network", f"{seen}: on a node that is the node itself", remedy)
    own = own_addresses()
    if not set(addresses) & set(own):
        return warn("network", f"{seen}, which is none of this host's own: {', '.join(own)}", remedy)
    if len(own) > 1 and name == socket.gethostname():
        return warn("network", f"{seen}; this host has {', '.join(own)}, and nodes may not reach the first", remedy)
    return ok("network", seen)


def scheduler(site: Site, _run_dir: Path, run: Run = run_command) -> Iterator[Finding]:
    """The scheduler's commands and its queue. ``run`` runs them (recorded answers in tests)."""
    if site.retired:
        yield fail("scheduler", f"{site.name} is no more: {site.retired}", "this site is for replays only")
    if not (commands := _COMMANDS[site.scheduler]):
        yield ok("scheduler", "none: pilots are local processes")
        return
    if run is run_command and (missing := [name for name in commands if shutil.which(name) is None]):
        remedy = "run this on a login node, with the scheduler's module loaded"
        yield fail("scheduler", f"not on this host's PATH: {', '.join(missing)}", remedy)
        return
    yield ok("scheduler", f"{site.scheduler}'s commands are here")
    try:
        yield _slurm_partition(site, run) if site.scheduler == "slurm" else _named_queue(site, run)
    except SubmitError as error:
        yield fail("scheduler", str(error), "does the scheduler run, and does the queue in the site file exist?")


def _slurm_partition(site: Site, run: Run) -> Finding:
    which = ["-p", site.partition] if site.partition else []
    rows = [line.split("|") for line in run(["sinfo", "-h", "-o", "%P|%a|%D", *which], site.command_timeout_s).split()]
    named = site.partition or "the default partition"
    row = next((row for row in rows if site.partition or row[0].endswith("*")), None)
    if row is None:
        seen = f"Slurm has no partition {site.partition}" if site.partition else "Slurm has no default partition"
        return fail("scheduler", seen, "correct partition in the site file; sinfo -s lists them")
    if row[1] != "up":
        return fail("scheduler", f"{named} is {row[1]}", "ask the admins, or choose another partition")
    return ok("scheduler", f"{named} is up with {row[2]} nodes")


def _named_queue(site: Site, run: Run) -> Finding:
    """PBS and LSF end with an error where there is no such queue."""
    if site.queue is None:
        return warn("scheduler", "the site file names no queue", "jobs go to the default queue, which seldom preempts")
    run([*(["qstat", "-Q"] if site.scheduler == "pbspro" else ["bqueues"]), site.queue], site.command_timeout_s)
    return ok("scheduler", f"queue {site.queue} is there")
