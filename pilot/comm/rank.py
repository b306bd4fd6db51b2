"""The rank process: ``python -m pilot.comm.rank GENERATION``, started by hydra's proxy.

Exit status 0: told to quit by its worker. 1: its worker has gone. Anything else: MPI failed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from pilot.comm.channel import Channel, Gone
from pilot.comm.rank_server import RankServer
from pilot.comm.segment import announce

_TIMER_SLACK = Path("/proc/self/timerslack_ns")


def main() -> None:
    """Serve the processes whose sockets ``PILOT_WORKER_SOCKETS`` lists, in the generation that the argument names."""
    from pilot.comm import mpi

    _wake_on_time()
    try:
        announce(os.environ)
        fabric = mpi.start()
        channels = [Channel.connect(Path(path)) for path in os.environ["PILOT_WORKER_SOCKETS"].split(os.pathsep)]
        RankServer(channels, fabric, int(sys.argv[1])).run()
    except (Gone, OSError):
        os._exit(1)  # no MPI_Finalize: it would wait for ranks that may never come
    mpi.finish()


def _wake_on_time() -> None:
    """Linux lets a nap last 50 µs longer than asked, to wake sleepers together: twice the time of a small sum."""
    with suppress(OSError):
        _TIMER_SLACK.write_text("1")


if __name__ == "__main__":
    main()
