"""``pilot agent``: what runs on a node."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from pathlib import Path

import click

from pilot.cli.numbers import FiniteRange
from pilot.core.errors import UserError
from pilot.io.printable import PrintableFormatter

_EPILOG = """\b
Example, in a batch script of the preemptable queue:
  export PILOT_CONNECTION=$HOME/.local/state/pilot/polaris/connection.json
  exec pilot agent --interface hsn0
"""


@click.command(name="agent", epilog=_EPILOG)
@click.option(
    "--connection",
    envvar="PILOT_CONNECTION",
    required=True,
    type=click.Path(path_type=Path),
    help="The pool's connection file (connection.json in the run directory of `pilot up`).  [env: PILOT_CONNECTION]",
)
@click.option(
    "--interface",
    envvar="PILOT_INTERFACE",
    help="Network interface for MPI, e.g. hsn0; default: the one towards the coordinator.  [env: PILOT_INTERFACE]",
)
@click.option(
    "--fabric",
    envvar="PILOT_FABRIC",
    default="tcp",
    show_default=True,
    help="libfabric provider for MPI.  [env: PILOT_FABRIC]",
)
@click.option("--python", default=sys.executable, help="Interpreter to warm up at once; default: the agent's own.")
@click.option(
    "--walltime-end",
    "walltime_end_s",
    type=FiniteRange(min=0),
    envvar="PILOT_WALLTIME_END",
    help="When the job ends, in Unix time; default: Slurm's word.  [env: PILOT_WALLTIME_END]",
)
@click.option(
    "--grace-s",
    type=FiniteRange(min=0),
    envvar="PILOT_GRACE_S",
    help="Seconds between the notice and the kill; default: what the site file says.  [env: PILOT_GRACE_S]",
)
def command(
    connection: Path,
    interface: str | None,
    fabric: str,
    python: str,
    walltime_end_s: float | None,
    grace_s: float | None,
) -> None:
    """Join the pool of a coordinator with this node, and serve it until told to leave.

    Runs in the foreground and logs to standard error. A signal (TERM, INT, USR1, …) is a notice: the pilot says so to
    the coordinator and leaves when it may, within the grace. Ends with 0 when it left in good order, with 2 when it
    was refused or the input is wrong.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        # The shell above us ignores it (launchers.steps.PBS_SHELL); it is to end us until we listen to it ourselves.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if shutil.which(python) is None:
        raise UserError(f"--python: there is no interpreter {python} on this node")
    from pilot.agent.runner import Options, run

    os.umask(0o077)  # of our own files; a script gets its user's
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    options = Options(interface, fabric, python, walltime_end_s, grace_s)
    sys.exit(run(connection, options))
