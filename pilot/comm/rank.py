"""The rank process: ``python -m pilot.comm.rank DESCRIPTOR [RAIL...]``.

It imports what it needs and waits for its order (:mod:`pilot.comm.rank_order`) on the given socket. Importing takes
most of the start-up time, and can be done long before the order arrives. MPI_Init then uses PMI on the same socket; the
group's first rank reports there when MPI is up on all. If a node has several rank processes, the other descriptors
connect rail 0 to the other rails, and these to rail 0.

Exit status 0: it got a ``Quit`` from its worker, or never an order. 3: its worker sent an invalid request, shown in one
line. ``WORKER_GONE``: its worker has ended. Anything else: MPI failed.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pilot.comm import mpi
from pilot.comm.channel import Channel, PeerGone
from pilot.comm.pmi import JOINED, variables
from pilot.comm.rails import Rails, RailServer
from pilot.comm.rank_order import WARM, WORKER_GONE, RankOrder, receive
from pilot.comm.rank_server import RankServer
from pilot.core.errors import ProtocolError

REFUSED = 3
_TIMER_SLACK = Path("/proc/self/timerslack_ns")
_NAME = Path("/proc/self/comm")
"""The process name that ps and top show."""


def main(descriptor: int, *rails: int) -> None:
    """Wait for the order and carry it out."""
    _wake_on_time()
    _NAME.write_text(WARM)
    order = receive(socket.socket(fileno=os.dup(descriptor)))
    if order is not None:
        _carry_out(order, descriptor, [Channel(socket.socket(fileno=end)) for end in rails])


def _carry_out(order: RankOrder, descriptor: int, rails: Sequence[Channel]) -> None:
    _NAME.write_text(f"rank g{order.generation}")
    os.environ.update(variables(descriptor, *order.of_world))
    try:
        fabric = mpi.start(order.rail, order.rails)
        if order.rail:
            RailServer(rails[0], fabric, len(order.sockets), order.rail, order.rails).run()
        else:
            if order.rank == 0:
                os.write(descriptor, JOINED)
            channels = [Channel.connect(Path(path)) for path in order.sockets]
            RankServer(channels, fabric, order.generation, Rails(rails[: order.rails - 1])).run()
    except (PeerGone, OSError):
        os._exit(WORKER_GONE)  # no MPI_Finalize: it would wait for ranks that may never arrive
    except ProtocolError as error:
        print(f"rank process: {error}", file=sys.stderr, flush=True)
        os._exit(REFUSED)
    mpi.finish()


def _wake_on_time() -> None:
    """Set the timer slack: by default Linux sleeps up to 50 µs longer than requested, twice the time of a small sum."""
    with suppress(OSError):
        _TIMER_SLACK.write_text("1")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
