"""The rank process: ``python -m pilot.comm.rank GENERATION``, started by hydra's proxy.

Exit status 0: told to quit by its worker. 1: its worker has gone. Anything else: MPI failed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pilot.comm.channel import Channel, Gone
from pilot.comm.serve import Server


def main() -> None:
    """Serve the worker whose socket ``PILOT_WORKER_SOCKET`` names, in the generation that the argument names."""
    from pilot.comm import mpi

    fabric = mpi.start()
    try:
        channel = Channel.connect(Path(os.environ["PILOT_WORKER_SOCKET"]))
        Server(channel, fabric, int(sys.argv[1])).run()
    except (Gone, OSError):
        os._exit(1)  # no MPI_Finalize: it would wait for ranks that may never come
    mpi.finish()


if __name__ == "__main__":
    main()
