"""What a fork server does with a script for torchrun, for workers started by a :mod:`tests.integration.plane`."""

import os
import runpy
import sys

from pilot.train import ddp

os.environ |= {ddp.ADDRESS: "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
ddp.Restarts(os.environ).run()  # returns only in the processes that run the script
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
