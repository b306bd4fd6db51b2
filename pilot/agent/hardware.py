"""What the hardware of a node is, without a library that would initialise its accelerators: the agent forks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from pilot.core.errors import SubmitError
from pilot.host.commands import run_command
from pilot.host.system import cgroups, usable_cores

LIMIT_S = 20.0
"""For a tool to answer; a driver that starts takes some seconds."""

_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")

_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NONE = ("", "-1", "NoDevFiles")
"""Values of these variables with which there are no accelerators."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """See :class:`pilot.core.pool.node_type.NodeType`."""

    accelerator: str
    accelerators: int
    memory_gb: float
    cores: int


def hardware(environment: Mapping[str, str] = os.environ) -> Hardware:
    """Return the hardware that this process may use. Of several kinds of accelerators, the first counts."""
    visible = [environment[name] for name in _VISIBLE if name in environment]
    most = min((0 if text in _NONE else text.count(",") + 1 for text in visible), default=None)
    found = [] if most == 0 else (of_nvidia(_said(_NVIDIA)) or of_amd(_said(_AMD)))[:most]
    if not found:
        return Hardware("", 0, _memory_gb(), usable_cores())
    model = found[0][0]
    sizes_gb = [memory_gb for name, memory_gb in found if name == model]
    return Hardware(model[:64], len(sizes_gb), min(sizes_gb), usable_cores())


def of_nvidia(text: str) -> list[tuple[str, float]]:
    """Return the models in the output of ``nvidia-smi``, and the memory of each in GB; 0: not known."""
    rows = (line.rpartition(",") for line in text.splitlines() if "," in line)
    return [(name.strip(), _number(mib) * 2**20 / 1e9) for name, _, mib in rows]


def of_amd(text: str) -> list[tuple[str, float]]:
    """Return the same from ``rocm-smi``, whose versions write the names of fields in upper or lower case."""
    found = []
    with suppress(ValueError, AttributeError):
        for card in json.loads(text or "{}").values():
            fields = {name.lower(): str(value) for name, value in card.items()}
            name = fields.get("card series") or fields.get("card model") or ""
            if name:
                found.append((name.strip(), _number(fields.get("vram total memory (b)", "")) / 1e9))
    return found


def _said(command: tuple[str, ...]) -> str:
    with suppress(SubmitError, OSError):
        return run_command(command, LIMIT_S) if shutil.which(command[0]) else ""
    return ""


def _number(text: str) -> float:
    return float(text) if text.strip().isdecimal() else 0.0


def _memory_gb() -> float:
    """The node's memory, or less if this process's control group may use less."""
    limits = [psutil.virtual_memory().total]
    for folder in cgroups(Path("/proc/self/cgroup").read_text(), Path("/sys/fs/cgroup"), "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):
                limits.append(int((folder / name).read_text()))
    return min(limits) / 1e9
