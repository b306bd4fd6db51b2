"""``pilot agent``: the process that runs on a node."""

from __future__ import annotations

import logging
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

import click

from pilot.cli.options import FiniteRange
from pilot.core.errors import UserError
from pilot.host.printable import PrintableFormatter

_EPILOG = """\b
Example, in a batch script of the preemptable queue:
  export PILOT_CONNECTION=$HOME/.local/state/pilot/polaris/connection.json
  exec pilot agent --interface hsn0
"""

LEAST_FILE_BYTES = 128 << 20
"""A trainer's log may grow to this. Shared memory, MPI's and that of the gradients, is limited as files are."""


@click.command(name="agent", epilog=_EPILOG)
@click.option(
    "--connection",
    envvar="PILOT_CONNECTION",
    required=True,
    type=click.Path(path_type=Path),
    help="The pool's connection file (connection.json in its run directory).  [env: PILOT_CONNECTION]",
)
@click.option(
    "--interface",
    metavar="NAME",
    envvar="PILOT_INTERFACE",
    help="Network interface for MPI, e.g. hsn0, or several: hsn0,hsn1 (default: the one towards the coordinator)."
    "  [env: PILOT_INTERFACE]",
)
@click.option(
    "--fabric",
    metavar="NAME",
    envvar="PILOT_FABRIC",
    default="tcp",
    help="libfabric provider for MPI.  [env: PILOT_FABRIC]",
)
@click.option(
    "--python", metavar="PATH", default=sys.executable, show_default="this one", help="Interpreter to start in advance."
)
@click.option(
    "--walltime-end",
    "walltime_end_s",
    metavar="UNIX-TIME",
    type=FiniteRange(min=0),
    envvar="PILOT_WALLTIME_END",
    help="When the job ends (default: from Slurm).  [env: PILOT_WALLTIME_END]",
)
@click.option(
    "--grace-s",
    type=FiniteRange(min=0),
    envvar="PILOT_GRACE_S",
    help="Time between a preemption notice and the kill (default: from the site file).  [env: PILOT_GRACE_S]",
)
def command(
    connection: Path,
    interface: str | None,
    fabric: str,
    python: str,
    walltime_end_s: float | None,
    grace_s: float | None,
) -> None:
    """Join a pool with this node, and train for it until told to leave.

    Runs in the foreground and logs to stderr. A signal (TERM, INT, USR1, …) counts as a preemption notice: the agent
    passes it on to the coordinator, hands over its work and leaves within the grace period. Exit status 0 if it left
    cleanly, 2 if it was refused or the input is wrong.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        # The parent shell ignores SIGTERM (launchers.steps.PBS_SHELL); until we handle it ourselves, it should end us.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if shutil.which(python) is None:
        raise UserError(f"--python: no interpreter {python} on this node")
    _refuse_small_files()
    from pilot.agent.runner import Options, run

    os.umask(0o077)  # for our own files; scripts get the user's umask
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    options = Options(interface.split(",") if interface else (), fabric, python, walltime_end_s, grace_s)
    sys.exit(run(connection, options))


def _refuse_small_files() -> None:
    """Refuse a limit on file sizes that MPI would take for a lack of memory."""
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most != resource.RLIM_INFINITY and most < LEAST_FILE_BYTES:
        raise UserError(
            f"a file may have at most {most >> 10:,} KiB on this node (ulimit -f); the shared memory, logs and "
            f"checkpoints of a pilot need {LEAST_FILE_BYTES >> 10:,} KiB or more: raise it where the pilot is started"
        )
