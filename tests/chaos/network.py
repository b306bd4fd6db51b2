"""A network of namespaces: each pilot has its own, on a bridge to the coordinator, and can be cut off.

Only root can create it. Everything is named after this process, and :meth:`Lan.close` removes it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress

INTERFACE = "eth0"
COORDINATOR = -1
"""The number of the place on the bridge that is not a namespace."""
_NOBODY = "02:00:00:00:00:01"
"""An Ethernet address of our own that no interface has."""
_PORTS = 24


def unavailable() -> str:
    """Why pilots cannot have namespaces here; empty if they can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if not (shutil.which("ip") and shutil.which("nsenter")):
        return "iproute2 or nsenter is missing here"
    try:
        Lan().close()
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.decode().strip()}"
    return ""


class Lan:
    """The bridge, with a port for the coordinator at ``address``. Pilots' ports are created on first use."""

    def __init__(self) -> None:
        self.name = f"pc{os.getpid()}"
        self._prefix = f"10.{128 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self.address = f"{self._prefix}.1"
        self._ports: list[int] = []
        _ip("link", "add", self.name, "type", "bridge")
        try:
            _ip("addr", "add", f"{self.address}/24", "dev", self.name)
            _ip("link", "set", self.name, "up")
            self.port(0)
        except BaseException:
            self.close()
            raise

    def address_of(self, number: int) -> str:
        """The address of the namespace ``number``."""
        return f"{self._prefix}.{number + 2}"

    def port(self, number: int) -> list[str]:
        """The prefix that runs a command in the namespace ``number``."""
        assert 0 <= number < _PORTS
        space, outside = f"{self.name}n{number}", self._outside(number)
        if number not in self._ports:
            self._ports.append(number)
            _ip("netns", "add", space)
            self._connect(space, outside)
            _ip("link", "set", outside, "master", self.name, "up")
            _ip("-n", space, "addr", "add", f"{self.address_of(number)}/24", "dev", INTERFACE)
            _ip("-n", space, "link", "set", INTERFACE, "up")
            _ip("-n", space, "link", "set", "lo", "up")
        return ["nsenter", f"--net=/run/netns/{space}"]

    def _connect(self, space: str, outside: str) -> None:
        """Create a cable: ``INTERFACE`` in a namespace, and its other end here."""
        _ip("link", "add", outside, "type", "veth", "peer", "name", INTERFACE, "netns", space)

    def cut(self, number: int) -> None:
        """Nothing gets in or out of this namespace any more, and nobody is notified."""
        _ip("link", "set", self._outside(number), "down")

    def mend(self, number: int) -> None:
        """Reconnect what was cut."""
        _ip("link", "set", self._outside(number), "up")

    def lose(self, sender: int, receiver: int) -> None:
        """What the one sends to the other is lost, and nobody is notified; the other direction works."""
        self._neighbour("replace", sender, receiver, "lladdr", _NOBODY, "nud", "permanent")

    def find(self, sender: int, receiver: int) -> None:
        """Undo :meth:`lose`."""
        with suppress(subprocess.CalledProcessError):  # undone already
            self._neighbour("del", sender, receiver)

    def _neighbour(self, change: str, sender: int, receiver: int, *how: str) -> None:
        space = [] if sender == COORDINATOR else ["-n", f"{self.name}n{sender}"]
        device = self.name if sender == COORDINATOR else INTERFACE
        _ip(*space, "neigh", change, self.address_of(receiver), "dev", device, *how)

    def close(self) -> None:
        """Remove everything."""
        for number in self._ports:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "del", f"{self.name}n{number}")
            with suppress(subprocess.CalledProcessError):  # deleted with the namespace, a moment later
                _ip("link", "del", self._outside(number))
        self._ports.clear()
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", self.name)

    def _outside(self, number: int) -> str:
        return f"{self.name}v{number}"


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
