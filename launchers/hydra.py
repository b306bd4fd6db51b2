"""How an MPI group is launched over pilots that share nothing but the network: MPICH's hydra in its manual mode.

``mpiexec -launcher manual`` starts nothing. It prints one command per rank, which somebody else runs on the rank's
node. So the group's first pilot runs :func:`mpiexec_command`, hands the commands that :func:`proxy_commands` finds in
its output to the pilots, and each runs its own with :func:`environment` in its environment.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

_COMMAND = "HYDRA_LAUNCH:"
_END = "HYDRA_LAUNCH_END"


def mpiexec_command(size: int, generation: int, *, interface: str, python: str = sys.executable) -> list[str]:
    """The command that the group's first pilot runs.

    Parameters
    ----------
    size : ranks, one per pilot
    generation : told to the rank processes
    interface : the network interface that mpiexec and the ranks bind to, e.g. ``hsn0``, here ``lo``
    python : the interpreter of the rank processes; mpiexec is taken from beside it where it is there
    """
    # In manual mode the names only tell the ranks apart: nobody resolves them.
    hosts = ",".join(f"rank{rank}:1" for rank in range(size))
    beside = Path(python).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else "mpiexec"
    program = [python, "-m", "pilot.comm.rank", str(generation)]
    # Without -genvnone the leader's environment would replace what each agent gave its own proxy.
    return [mpiexec, "-launcher", "manual", "-genvnone", "-iface", interface, "-hosts", hosts, *program]


def environment(*, provider: str = "tcp", one_machine: bool = False) -> dict[str, str]:
    """What mpiexec and the proxies need in their environment, beside ``PILOT_WORKER_SOCKETS`` for a proxy.

    ``provider`` is libfabric's. Where all pilots are on ``one_machine``, ranks would talk through shared memory (and
    leave segments in /dev/shm when killed); then they are told to use the network as they would between nodes.
    An empty ``HWLOC_XMLFILE`` keeps a proxy from writing the topology to a file in /tmp, which stays when it is killed.
    """
    variables = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": provider, "HWLOC_XMLFILE": ""}
    return variables | {"MPIR_CVAR_NOLOCAL": "1"} if one_machine else variables


def proxy_commands(output: Iterable[str]) -> list[str] | None:
    """The proxy commands, by rank, in what mpiexec has printed so far; None while they are not complete."""
    commands: list[str] = []
    for line in output:
        if line.startswith(_END):
            return commands
        if line.startswith(_COMMAND):
            commands.append(line.removeprefix(_COMMAND).strip())
    return None
