"""Keeps the memory of a process that lives for weeks from creeping up, though what it knows does not grow."""

from __future__ import annotations

import ctypes
import gc

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
_MMAP_THRESHOLD_BYTES = 128 << 10


def return_large_blocks() -> None:
    """Call it before any thread is started.

    glibc raises the size from which a block is a mapping of its own to the largest one that was freed so far. A segment
    of the journal that was compressed once (4 MiB) is taken from the heap the next time, and the small blocks that
    follow keep its place from being given back. A fixed size prevents that, as one arena for all threads prevents a
    remainder in each (mallopt(3)). Other C libraries have neither these options nor this need.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        mallopt(_M_ARENA_MAX, 1)


def freeze_what_is_loaded() -> None:
    """Modules are no garbage, so full collections need not look through them.

    Python postpones a full collection until there are a quarter as many new objects as the last one has looked through.
    With the 100,000 objects of modules that is 25,000, and that much garbage in cycles could pile up. The second
    collection makes Python forget the modules in this count, too.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
