"""Plain file input and output: complete reads and writes, hashes, and publication by rename.

Array bytes are written here and not by h5py, which holds a global lock (and the GIL): the calls below release the GIL,
so training continues while a thread writes.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import xxhash

from pilot.checkpoint import names
from pilot.checkpoint.leaves import Bytes
from pilot.core.errors import CheckpointError, Unreadable
from pilot.host.files import sync_directory
from pilot.host.private_folder import shown

DIGEST_CHARACTERS = 32

CHUNK_BYTES = 4 * 1024 * 1024
"""So much is read at once: it is still in the cache when it is hashed."""

_MOST_BUFFERS = os.sysconf("SC_IOV_MAX")


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: thousands of objects are created here and none is garbage, so collecting would only
    stop all threads.

    Also a decorator.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def digest(data: Bytes) -> str:
    """The checksum of ``data``: XXH3, 128 bits, in hexadecimal digits."""
    return xxhash.xxh3_128(data.data).hexdigest()


def write(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all ``buffers`` in order, with few system calls, because each one may have to wait for the GIL."""
    rest = [buffer for buffer in buffers if len(buffer)]
    rest.reverse()
    while rest:
        written = os.writev(fd, rest[: -_MOST_BUFFERS - 1 : -1])
        while rest and written >= len(rest[-1]):
            written -= len(rest.pop())
        if written:
            rest[-1] = rest[-1][written:]


def room(size: int) -> Bytes:
    """Memory for ``size`` bytes that a file really has; :class:`Unreadable` if there is none."""
    try:
        return np.empty(size, np.uint8)  # by numpy, which requests huge pages
    except MemoryError:
        raise Unreadable(f"there is no memory to read {size:,} bytes") from None


def read_at(fd: int, into: Bytes | int, offset: int) -> str | None:
    """Fill ``into`` from ``offset``, or only read that many bytes, and return their checksum, computed while in the
    cache; None if the file is too short."""
    state, size = xxhash.xxh3_128(), into if isinstance(into, int) else len(into)
    target = room(min(size, CHUNK_BYTES)) if isinstance(into, int) else into
    for start in range(0, size, CHUNK_BYTES):
        first = 0 if isinstance(into, int) else start
        chunk = target[first : first + min(CHUNK_BYTES, size - start)]
        if fill(fd, chunk, offset + start) < len(chunk):
            return None
        state.update(chunk.data)
    return state.hexdigest()


def fill(fd: int, chunk: Bytes, offset: int) -> int:
    """Fill ``chunk`` from ``offset``; returns how many bytes there were."""
    done = 0
    while done < len(chunk):
        got = os.preadv(fd, [chunk.data[done:]], offset + done)
        if got == 0:
            break
        done += got
    return done


@contextmanager
def published(path: Path, step: int) -> Iterator[int]:
    """Yield a descriptor to write to; when the block ends, the file is synced and appears as ``path``.

    Temporary files of dead writers are removed first. On any failure its own temporary file is removed, nothing else is
    touched, and :class:`CheckpointError` names the cause.
    """
    temporary = path.with_name(names.temporary_name(path.name))
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _sweep(path.parent, os.fstat(fd).st_mtime)
            yield fd
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise _not_written(path, step, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _not_written(path: Path, step: int, error: OSError) -> CheckpointError:
    advice = {
        errno.ENOSPC: "the disk is full: free some space",
        errno.EDQUOT: "your quota is used up: free some space",
        errno.EFBIG: "the file would exceed the size limit: raise it (ulimit -f)",
    }.get(error.errno or 0, error.strerror or str(error))
    return CheckpointError(
        f"the checkpoint of step {step} was not written to {shown(path.parent)}: {advice}; earlier checkpoints are"
        " untouched",
        transient=True,
    )


_FOREIGN_IDLE_S = 600.0
"""A temporary file of another host, whose writer is invisible here, is dead if nothing was written for this long."""


def _sweep(directory: Path, now_s: float) -> None:
    """Remove the temporary files of dead writers. ``now_s`` is the file system's time, not this host's."""
    for temporary in names.temporaries(directory):
        with suppress(OSError):
            if _is_dead(temporary, now_s):
                temporary.path.unlink()


def _is_dead(temporary: names.Temporary, now_s: float) -> bool:
    if temporary.host == socket.gethostname():
        return names.started_ticks(temporary.pid) != temporary.started
    return now_s - temporary.path.stat().st_mtime > _FOREIGN_IDLE_S
