"""The site file's network settings, compared with this host."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path

import psutil

from pilot.core.errors import PilotError
from pilot.doctor.finding import Finding, fail, ok, warn
from pilot.rundir.rundir import RunDir, owner
from pilot.site.addresses import advertise_address, bind_address, own_addresses
from pilot.site.site import Site

_ok, _warn, _fail = (partial(grade, "network") for grade in (ok, warn, fail))


def network(site: Site, run_dir: Path) -> Iterator[Finding]:
    """Check the interfaces, the port, and the address that pilots connect to."""
    yield from _interfaces(site)
    try:
        yield _port(site, run_dir)
        yield _advertised(site)
    except PilotError as error:
        yield _fail(str(error), "fix bind_interface or advertise_interface in the site file")


def _interfaces(site: Site) -> Iterator[Finding]:
    there = psutil.net_if_stats()
    for interface in site.interfaces:
        if interface not in there:
            seen = f"this host has no interface {interface}, which training uses; it has {', '.join(sorted(there))}"
            yield _warn(seen, "the nodes must have it: run pilot doctor inside a job, too")
        elif not there[interface].isup:
            yield _fail(f"interface {interface} is down", "choose another interface in the site file")
        else:
            yield _ok(f"interface {interface} is up")


def _port(site: Site, run_dir: Path) -> Finding:
    """Check that the coordinator can listen at the site's address and port."""
    address = bind_address(site)
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, site.port))
        except OSError as error:
            if pid := owner(RunDir(run_dir)):
                return _ok(f"port {site.port} on {address} is in use; this pool is up (process {pid})")
            seen = f"the coordinator cannot listen on {address}, port {site.port}: {error.strerror}"
            return _fail(seen, "set port=0 (any port), another port, or another bind_address in the site file")
    return _ok(f"the coordinator can listen on {address}, {f'port {site.port}' if site.port else 'any port'}")


def _advertised(site: Site) -> Finding:
    """Check that nodes can use the advertised address. If training uses ``lo``, the nodes are this machine."""
    name = advertise_address(site)
    try:
        addresses = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return _fail(f"the name {name} does not resolve", "set advertise_interface in the site file")
    seen = f"pilots connect to {name} ({', '.join(addresses)})"
    remedy = "set advertise_interface in the site file"
    if site.scheduler == "local" or site.interface == "lo":
        return _ok(seen)
    if all(ip_address(address.partition("%")[0]).is_loopback for address in addresses):
        return _fail(f"{seen}: on a node, this is the node itself", remedy)
    own = own_addresses()
    if not set(addresses) & set(own):
        return _warn(f"{seen}, which is not one of this host's addresses: {', '.join(own)}", remedy)
    if len(own) > 1 and name == socket.gethostname():
        return _warn(f"{seen}; this host has {', '.join(own)}, and nodes may be unable to reach the first", remedy)
    return _ok(seen)
