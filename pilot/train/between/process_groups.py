"""The process groups of ``torch.distributed`` that connect one training process of each node.

A member that dies or is cut off may leave work pending for ever. So a group can be *abandoned*: then its pending work
ends within moments, whatever the other members do.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import torch

from pilot.comm.naps import connections
from pilot.train.node.forming import Store, gloo_on
from pilot.train.node.node_group import NEVER, ThenCopy, Work

FORM_LIMIT_S = 10.0
"""How long a gloo group may take to form; its thread stays as long if the generation is lost meanwhile."""


class ProcessGroup(Protocol):
    """A process group of one training process of each node. ``can_be_left``: whether work that never ends harms nothing
    but the memory that it may write to.
    """

    can_be_left: bool

    def connected(self, store: Store) -> ProcessGroup:
        """Return the group, connected to the other members, which have constructed theirs; may wait for them."""

    def allreduce(self, numbers: torch.Tensor) -> Work:
        """Start to sum ``numbers`` over the members, in place."""

    def broadcast(self, block: torch.Tensor, root: int) -> Work:
        """Start to copy ``block``, numbers in host memory, from member ``root`` to the others."""

    def abandon(self) -> None:
        """Make all pending work end."""

    def close(self) -> None:
        """End the group, which has no pending work."""


class Gloo:
    """A gloo process group whose ports are bound to ``interface``. ``store`` has the addresses of all members.

    If a member is killed, the connections to it end, and with them all pending work. If it is stopped or cut off, they
    do not, and torch's ``abort`` does not end the work either (2.13). So abandoning a group shuts down the connections
    at this end, for reading: gloo may never notice that it cannot write. They are recognised by their addresses. The
    listening socket stays open: gloo ends the process if ``accept`` fails. Rarely work stays pending even so, if
    members are lost one after the other: gloo waits for memory that it will never get, and reads nothing more.
    """

    can_be_left = True

    def __init__(self, store: Store, rank: int, size: int, *, interface: str) -> None:
        self._group = gloo_on(interface, store, rank, size, timedelta(seconds=FORM_LIMIT_S))
        self._group._set_default_timeout(NEVER)
        self._addresses = [bytes(store.get(key)) for key in store.list_keys()]

    def connected(self, store: Store) -> ProcessGroup:
        del store
        return self

    def allreduce(self, numbers: torch.Tensor) -> Work:
        work: Work = self._group.allreduce([numbers])
        return work

    def broadcast(self, block: torch.Tensor, root: int) -> Work:
        work: Work = self._group.broadcast(block, root)
        return work

    def abandon(self) -> None:
        for descriptor in connections():
            with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                ends = _packed(connection.getsockname()), _packed(connection.getpeername())
                if any(end in address for end in ends for address in self._addresses):
                    connection.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        """Do nothing: the sockets are closed with this object."""


class Nccl:
    """An NCCL process group for tensors on ``device``. It has not run on a machine with several GPUs yet.

    Its communicator is nonblocking, so that ``abort`` can end it while it waits for others. But torch's first
    collective holds a lock that ``abort`` needs, until all members are connected (or TORCH_NCCL_NONBLOCKING_TIMEOUT is
    over). So it is not begun before all have come to :meth:`connected`. ``abort`` itself may hang: it has a thread.
    """

    can_be_left = False

    def __init__(self, store: Store, rank: int, size: int, *, device: torch.device) -> None:
        from torch.distributed import ProcessGroupNCCL

        options: Any = ProcessGroupNCCL.Options()
        options.config.blocking = 0
        self._device = device
        self._group: Any = ProcessGroupNCCL(store, rank, size, options)
        self._group._set_default_timeout(NEVER)
        self._group.eager_connect_single_device(device)

    def connected(self, store: Store) -> ProcessGroup:
        del store
        torch.cuda.set_device(self._device)  # of this thread
        self.allreduce(torch.zeros(1, device=self._device)).wait()
        torch.cuda.synchronize(self._device)
        return self

    def allreduce(self, numbers: torch.Tensor) -> Work:
        work: Work = self._group.allreduce([numbers])
        return work

    def broadcast(self, block: torch.Tensor, root: int) -> Work:
        on_gpu = block.to(self._device)
        return ThenCopy(self._group.broadcast(on_gpu, root), block, on_gpu)

    def abandon(self) -> None:
        threading.Thread(target=self._group.abort, daemon=True).start()

    def close(self) -> None:
        threading.Thread(target=self._group.shutdown, daemon=True).start()  # others may still receive our last data


def _packed(end: tuple[Any, ...]) -> bytes:
    """Return port and address as they are in a ``sockaddr_in``, which gloo's addresses contain; OSError for IPv6."""
    return int(end[1]).to_bytes(2, "big") + socket.inet_aton(end[0])
