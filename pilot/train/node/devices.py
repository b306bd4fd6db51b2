"""The GPU of a training process: before the script starts, the GPU with its local rank becomes the current device.

So ``"cuda"`` is the process's own GPU, and nothing is allocated on the first one; ``cuda:0`` is the node's first GPU in
all processes, and ``cuda:{session.local_rank}`` the own one. All GPUs of the node stay visible, as NCCL needs them.
With one process per node, the GPU is not used before the script uses it.

Devices are found through ``torch.accelerator``, so AMD's and Intel's GPUs work like NVIDIA's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

import torch

from pilot.core.errors import GPU_FAILED_STATUS, MATE_LOST_STATUS, UserError
from pilot.train.node.membership import Seat

_GLOO = "gloo/transport/"
"""In gloo's messages if a connection was lost; it has no class in torch either."""
_FAILURES = ("CUDA error", "HIP error", "cuDNN error", "NCCL error")
"""Prefixes of messages from GPU libraries, for errors without a class in torch."""


def exit_status(error: BaseException) -> int:
    """Return the exit status of a script that ends with ``error``. It is a special one if the GPU failed or had no
    memory left (somebody else may compute on it), because the script may succeed on another node.
    """
    if Seat.of(os.environ).nodes > 1 and isinstance(error, RuntimeError) and _GLOO in str(error):
        return MATE_LOST_STATUS
    return GPU_FAILED_STATUS if is_of_gpu(error) else 1


def is_of_gpu(error: BaseException) -> bool:
    """Return whether the GPU failed, or had no memory left."""
    kinds = tuple(filter(None, (getattr(torch, name, None) for name in ("AcceleratorError", "OutOfMemoryError"))))
    return isinstance(error, kinds) or (isinstance(error, RuntimeError) and str(error).startswith(_FAILURES))


def own_device() -> torch.device:
    """Return the accelerator that this process can use, whatever torch was built for; otherwise the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def take_own(seat: Seat, count: Callable[[], int] = torch.accelerator.device_count) -> None:
    """Make this process's GPU the current one; :class:`UserError` if the node has fewer GPUs than processes."""
    if seat.size == 1 or torch.accelerator.current_accelerator() is None:
        return
    devices = count()
    if why := too_few(devices, seat.size):
        raise UserError(why)
    if devices:
        torch.accelerator.set_device_index(seat.rank)


def too_few(devices: int, processes: int) -> str:
    """Return an error message if ``devices`` GPUs are too few for ``processes``; "" if not, or without GPUs."""
    if not 0 < devices < processes:
        return ""
    return (
        f"ranks_per_node is {processes}, but a process sees only {devices} GPU{'s' * (devices > 1)} on this node:"
        " request more GPUs in the site file (scheduler_options, select_options), or lower ranks_per_node; with MIG a"
        " process sees a single GPU instance: set ranks_per_node=1"
    )


def check_own(parameters: Iterable[torch.Tensor], seat: Seat) -> None:
    """Raise :class:`UserError` if the model is on the GPU of another process of the node."""
    for device in dict.fromkeys(parameter.device for parameter in parameters):
        if seat.size > 1 and device.type != "cpu" and device.index not in (None, seat.rank):
            raise UserError(
                f"the model is on {device}, but this process has the GPU {device.type}:{seat.rank}: use the device"
                f' "{device.type}" without a number, or f"{device.type}:{{session.local_rank}}"'
            )
