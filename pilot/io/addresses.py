"""Addresses of this host: where a coordinator listens, what pilots are told, how a node reaches it."""

from __future__ import annotations

import socket

import psutil

from pilot.core.errors import UserError
from pilot.io.site import Site


def bind_address(site: Site) -> str:
    """Where the site says to listen: an address, an interface's first address, else this host's loopback or all.

    A local site's pilots are on this host, so nothing else needs to reach it.
    """
    if site.bind_address is not None:
        return site.bind_address
    if site.bind_interface is not None:
        return interface_address(site.bind_interface)
    return "127.0.0.1" if site.scheduler == "local" else "0.0.0.0"


def advertise_address(site: Site) -> str:
    """Where pilots reach the coordinator: the site's interface, or where it listens, or this host's name."""
    if site.advertise_interface is not None:
        return interface_address(site.advertise_interface)
    address = bind_address(site)
    return socket.gethostname() if address in ("0.0.0.0", "::") else address


def interface_address(interface: str) -> str:
    """The first IPv4 address of a network interface of this host."""
    interfaces = psutil.net_if_addrs()
    if interface not in interfaces:
        raise UserError(f"this host has no network interface {interface!r}; there are: {', '.join(sorted(interfaces))}")
    for entry in interfaces[interface]:
        if entry.family.name == "AF_INET":
            return str(entry.address)
    raise UserError(f"network interface {interface!r} has no IPv4 address")


def interface_to(host: str, port: int) -> str:
    """The network interface of this host from which packets to ``host`` leave."""
    try:
        address = _source_address(host, port)
    except OSError as error:
        raise UserError(f"cannot find a way to the coordinator at {host}: {error.strerror}") from None
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries):
            return name
    raise UserError(f"no network interface has this host's own address {address}; give --interface")


def _source_address(host: str, port: int) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))  # no packet leaves: it only asks for the route
        return str(probe.getsockname()[0])
