"""MPICH's environment variables, and the names of the segments that it leaves in /dev/shm."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pilot.host.scheduler_environment import LAUNCHERS

_OF_SRUN = ("SLURM_MPI_TYPE", "SLURM_PMI")
_FNV_OFFSET, _FNV_PRIME = 2166136261, 16777619
_SEGMENT = re.compile(r"mpich_shm_[0-9a-f]{1,8}_\d+")


def environment(inherited: Mapping[str, str], *, interface: str | None, provider: str) -> dict[str, str]:
    """The environment of a rank process: ``inherited`` without the variables of the launcher that started the pilot
    (srun, PALS), plus what a group needs.

    Parameters
    ----------
    interface : the network interface to which the ranks' ports are bound, such as ``hsn0`` or ``lo``; None: MPICH's
        choice
    provider : libfabric's
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith((*LAUNCHERS, *_OF_SRUN))}
    ours = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": provider, "MPIR_CVAR_PMI_VERSION": "1"}
    return kept | ours | ({} if interface is None else on_interface(interface))


def on_interface(interface: str) -> dict[str, str]:
    """The variables that bind a rank's ports to ``interface``; read in MPI_Init."""
    return {"FI_TCP_IFACE": interface}


def segment_name(space: str, node: int) -> str:
    """The name in /dev/shm of the segment that MPICH 5 creates in MPI_Init: a hash (FNV-1a, 32 bits) of the name of the
    node's key-value space, and the node's number. All rails of a node share it.
    """
    hashed = _FNV_OFFSET
    for byte in space.encode():
        hashed = (hashed ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return f"mpich_shm_{hashed:x}_{node}"


def is_segment(name: str) -> bool:
    """Whether ``name`` in /dev/shm may be a segment of one of our rank processes."""
    return _SEGMENT.fullmatch(name) is not None
