"""Addresses of this host: where a coordinator listens, the address pilots get, how a node reaches it."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import psutil

from pilot.core.errors import UserError
from pilot.site.site import Site


def bind_address(site: Site) -> str:
    """Return the address to listen at: the site's, or its interface's first one, or else loopback or all addresses.

    A local site's pilots are on this host, so nothing else needs to reach it.
    """
    if site.bind_address is not None:
        return site.bind_address
    if site.bind_interface is not None:
        return interface_address(site.bind_interface)
    return "127.0.0.1" if site.scheduler == "local" else "0.0.0.0"


def advertise_address(site: Site) -> str:
    """Return the address for pilots: the site's interface, or where the coordinator listens, or this host's name."""
    if site.advertise_interface is not None:
        return interface_address(site.advertise_interface)
    address = bind_address(site)
    return socket.gethostname() if address in ("0.0.0.0", "::") else address


def interface_address(interface: str) -> str:
    """Return the first IPv4 address of a network interface of this host.

    MPI needs one: on an interface with IPv6 only, libfabric's tcp provider picks the link-local address and cannot bind
    to it (seen with the mpich 5.0.2 wheel).
    """
    interfaces = psutil.net_if_addrs()
    if interface not in interfaces:
        raise UserError(f"this host has no network interface {interface!r}; it has: {', '.join(sorted(interfaces))}")
    for entry in interfaces[interface]:
        if entry.family is socket.AF_INET:
            return str(entry.address)
    raise UserError(f"network interface {interface!r} has no IPv4 address, which MPI needs; choose another interface")


def interface_to(host: str, port: int) -> str:
    """Return this host's network interface for packets to ``host``, by IPv4 or IPv6."""
    try:
        address = _source_address(host, port)
    except OSError as error:
        raise UserError(f"no route to the coordinator at {host}: {error.strerror}") from None
    for name, entries in psutil.net_if_addrs().items():
        if any(_plain(entry.address) == address for entry in entries):
            return name
    raise UserError(f"no network interface has this host's own address {address}; choose one with --interface")


def own_addresses() -> list[str]:
    """The addresses at which other hosts can reach this one: those of all interfaces that are up, without loopback and
    link-local ones."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    entries = [e for name, found in psutil.net_if_addrs().items() if name in up for e in found]
    addresses = [_plain(e.address) for e in entries if e.family in (socket.AF_INET, socket.AF_INET6)]
    return [a for a in addresses if not (ip_address(a).is_loopback or ip_address(a).is_link_local)]


def _source_address(host: str, port: int) -> str:
    """Return the source address for packets to the first address of ``host`` that has a route."""
    failure = OSError()
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(address)  # sends no packet, only looks up the route
            except OSError as error:
                failure = error
                continue
            return _plain(str(probe.getsockname()[0]))
    raise failure


def _plain(address: str) -> str:
    """Return ``address`` without its zone (``fe80::1%eth0``)."""
    return address.partition("%")[0]
