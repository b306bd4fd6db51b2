"""What the hardware of a node is, without a library that would initialise its accelerators: the agent forks."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress

import psutil

from pilot.core.errors import SubmitError
from pilot.core.pool.node_type import NodeType
from pilot.host.commands import run_command
from pilot.host.system import usable_cores

LIMIT_S = 20.0
"""For a tool to answer; a driver that starts takes some seconds."""

_NVIDIA = ("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
_AMD = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")

Found = list[tuple[str, float]]
"""The model of each accelerator, and its memory in GB; 0: not known."""


def hardware() -> NodeType:
    """Return what this node has, as a type without a name. Of several kinds of accelerators the first counts."""
    found = of_nvidia(_said(_NVIDIA)) or of_amd(_said(_AMD))
    if not found:
        return NodeType("", memory_gb=psutil.virtual_memory().total / 1e9, cores=usable_cores())
    sizes_gb = [memory_gb for model, memory_gb in found if model == found[0][0]]
    return NodeType("", found[0][0][:64], len(sizes_gb), min(sizes_gb), usable_cores())


def of_nvidia(text: str) -> Found:
    """Read the output of ``nvidia-smi``."""
    rows = (line.rpartition(",") for line in text.splitlines() if "," in line)
    return [(name.strip(), _number(mib) * 2**20 / 1e9) for name, _, mib in rows]


def of_amd(text: str) -> Found:
    """Read the output of ``rocm-smi``, whose versions write the names of fields in upper or lower case."""
    with suppress(ValueError, AttributeError):
        cards = [{name.lower(): str(value) for name, value in card.items()} for card in json.loads(text).values()]
        gpus = [card for card in cards if "card series" in card]
        return [(gpu["card series"], _number(gpu.get("vram total memory (b)", "")) / 1e9) for gpu in gpus]
    return []


def _said(command: tuple[str, ...]) -> str:
    with suppress(SubmitError, OSError):
        return run_command(command, LIMIT_S) if shutil.which(command[0]) else ""
    return ""


def _number(text: str) -> float:
    return float(text) if text.strip().isdecimal() else 0.0
