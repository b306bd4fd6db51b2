"""What MPICH takes from a rank process's environment, and the name of what it leaves in /dev/shm."""

from __future__ import annotations

import re
from collections.abc import Mapping

_LAUNCHERS = (
    "PMI_",
    "PMIX_",
    "PALS_",
    "SLURM_MPI_TYPE",
    "SLURM_PMI",
    "HYDI_",
    "HYDRA_",
    "MPIEXEC_",
    "MPI_LOCAL",
    "I_MPI_",
    "OMPI_",
)
"""Beginnings of the names of variables by which a launcher tells a process that it is a rank of the launcher's world. A
pilot that srun or PALS has started has them, and so would its rank processes.
"""

_FNV_OFFSET, _FNV_PRIME = 2166136261, 16777619
_SEGMENT = re.compile(r"mpich_shm_[0-9a-f]{1,8}_\d+")


def environment(inherited: Mapping[str, str], *, interface: str | None, provider: str) -> dict[str, str]:
    """The environment of a rank process: ``inherited`` without a launcher's variables, and what a group needs.

    Parameters
    ----------
    interface : the network interface that the ranks' ports are bound to, e.g. ``hsn0``, here ``lo``; None: MPICH's
        choice
    provider : libfabric's
    """
    kept = {name: value for name, value in inherited.items() if not name.startswith(_LAUNCHERS)}
    ours = {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": provider, "MPIR_CVAR_PMI_VERSION": "1"}
    return kept | ours | ({} if interface is None else on_interface(interface))


def on_interface(interface: str) -> dict[str, str]:
    """What binds a rank's ports to it; read in MPI_Init."""
    return {"FI_TCP_IFACE": interface}


def segment_name(space: str, node: int) -> str:
    """The name under /dev/shm of the segment that MPICH 5 makes in MPI_Init: a hash (FNV-1a, 32 bits) of the name of
    the node's key-value space, and the node's number. All rails of a node share it.
    """
    hashed = _FNV_OFFSET
    for byte in space.encode():
        hashed = (hashed ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return f"mpich_shm_{hashed:x}_{node}"


def is_segment(name: str) -> bool:
    """Whether ``name`` under /dev/shm may be that of one of our rank processes' segments."""
    return _SEGMENT.fullmatch(name) is not None
