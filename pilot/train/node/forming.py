"""Process groups of ``torch.distributed`` that form with a store of this process, which gets the members' addresses.

Nothing listens but the groups themselves: addresses come through connections that are there already.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import psutil

from pilot.core.errors import PilotError

USED_INTERFACES = "PILOT_INTERFACES"
"""The agent's variable with the network interfaces between nodes."""

Store = Any  # of torch.distributed, which has no types for it


def used_interfaces(environment: Mapping[str, str]) -> list[str]:
    """Return the network interfaces between nodes."""
    return environment[USED_INTERFACES].split(",")


def gloo_on(interface: str, store: Store, rank: int, size: int, limit: timedelta) -> Any:
    """Return member ``rank`` of ``size`` of a gloo process group whose ports are bound to ``interface``."""
    from torch.distributed import ProcessGroupGloo

    options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # its stubs leave it out
    options._devices = [ProcessGroupGloo.create_device(hostname=address_of(interface), lazy_init=False)]
    options._timeout = limit
    return ProcessGroupGloo(store, rank, size, options)


class Forming:
    """A process group that forms in a thread: ``make`` puts this member's addresses into a store, and waits there for
    those of the other members.
    """

    def __init__(self, make: Callable[[Store], Any]) -> None:
        from torch.distributed import HashStore  # type: ignore[attr-defined]  # its stubs leave it out

        self._store: Store = HashStore()
        self.group: Any = None
        self.error = ""
        self._known: set[str] = set()
        self._thread = threading.Thread(target=self._form, args=(make,), daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the group has formed, or cannot."""
        return not self._thread.is_alive()

    def has_news(self, until_s: float) -> bool:
        """Whether the group has formed or cannot, or :meth:`new` has something; True from ``until_s`` on."""
        has_new = any(key not in self._known for key in self._store.list_keys())
        return self.is_over or has_new or time.monotonic() > until_s

    def new(self) -> dict[str, bytes]:
        """Return the new addresses of this member."""
        found = {key: bytes(self._store.get(key)) for key in self._store.list_keys() if key not in self._known}
        self._known.update(found)
        return found

    def introduce(self, addresses: Mapping[str, bytes]) -> None:
        """Put a member's new ``addresses`` into the store."""
        for key in addresses.keys() - self._known:
            self._known.add(key)
            self._store.set(key, addresses[key])

    def _form(self, make: Callable[[Store], Any]) -> None:
        try:
            self.group = make(self._store)
        except Exception as error:  # what torch raises has no common class
            self.error = str(error)


def address_of(interface: str) -> str:
    """Return the IPv4 address of ``interface``, which MPI uses, too."""
    for one in psutil.net_if_addrs().get(interface, ()):
        if one.family == socket.AF_INET:
            return str(one.address)
    raise PilotError(f"this node has no network interface {interface!r} with an IPv4 address")
