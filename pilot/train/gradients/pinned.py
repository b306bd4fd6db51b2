"""Host memory that is registered with CUDA, so that copies from and to a GPU are asynchronous."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress

import torch

from pilot.comm.arena import Arena

log = logging.getLogger(__name__)


def pin(arena: Arena, device: torch.device, user: object) -> None:
    """Register ``arena`` as long as ``user`` lives, which copies between it and ``device``.

    It must end before the memory does: CUDA refuses whatever is later at the same address.
    """
    address = torch.frombuffer(arena.memory, dtype=torch.uint8).data_ptr()
    status = torch.cuda.cudart().cudaHostRegister(address, arena.size, 0)  # type: ignore[no-untyped-call]  # torch has no types here
    if int(status) == 0:
        weakref.finalize(user, _unpin, arena, address, device).atexit = False
        return
    log.warning("CUDA cannot pin %d bytes (error %d): gradients are copied slowly", arena.size, int(status))
    _forget_error(device)


def _unpin(arena: Arena, address: int, device: torch.device) -> None:
    """``arena`` is an argument so that it lives until then."""
    del arena
    torch.cuda.synchronize(device)
    if int(torch.cuda.cudart().cudaHostUnregister(address)):  # type: ignore[no-untyped-call]  # torch has no types here
        _forget_error(device)


def _forget_error(device: torch.device) -> None:
    """CUDA reports an error again with the next kernel, which would be one of the script's."""
    with suppress(RuntimeError):
        torch.zeros(1, device=device)
