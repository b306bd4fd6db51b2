"""The shared-memory segment that MPICH makes in MPI_Init, noted by name before it exists.

A rank process may be killed at any moment, also while MPI_Init makes the segment, before anybody could see what it has
mapped. So it writes the name down first; its agent, or the agent's guardian, removes what is there of that name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_FNV_OFFSET, _FNV_PRIME = 2166136261, 16777619


def announce(environment: Mapping[str, str]) -> None:
    """Append the name to the file that ``PILOT_SEGMENTS`` names; nothing where the agent or hydra said nothing."""
    if "PILOT_SEGMENTS" not in environment or "PMI_FD" not in environment:
        return
    world = _name_of_world(int(environment["PMI_FD"]))
    if world is not None:
        with Path(environment["PILOT_SEGMENTS"]).open("a") as file:
            file.write(f"{segment_name(world, int(environment['PMI_RANK']))}\n")


def segment_name(world: str, rank: int) -> str:
    """The name under /dev/shm, as MPICH 5 makes it: a hash (FNV-1a, 32 bits) of the world's name and the number of the
    node. To MPICH each of our rank processes is on a node of its own.
    """
    hashed = _FNV_OFFSET
    for byte in world.encode():
        hashed = (hashed ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return f"mpich_shm_{hashed:x}_{rank}"


def _name_of_world(pmi: int) -> str | None:
    """What hydra calls this MPI world, asked on the socket on which MPI_Init asks it again (PMI-1)."""
    os.write(pmi, b"cmd=get_my_kvsname\n")
    found = re.search(r"kvsname=(\S+)", os.read(pmi, 4096).decode())
    return found[1] if found else None
