"""A child process of the coordinator that answers questions and can be killed at any moment.

It leads its own process group, so that its descendants are killed with it. It holds the reading end of a pipe to which
nothing is ever written; when the coordinator ends, the kernel kills the group (``F_SETSIG`` on the hangup), even if C
code never returns to Python.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from pilot.planners.one_thread import ONE_THREAD
from pilot.protocol.framing import HEAD_BYTES, framed, length_of

T = TypeVar("T")


class ChildProcess:
    """The parent's side: questions are sent to its stdin, and answers received from its stdout."""

    def __init__(self, process: asyncio.subprocess.Process, lifeline: int) -> None:
        self._process = process
        self._lifeline = lifeline

    @property
    def pid(self) -> int:
        """The process id; it is also that of its group."""
        return self._process.pid

    @classmethod
    async def start(cls, module: str, *options: str, scratch: Path) -> ChildProcess:
        """Run ``python -m module LIFELINE OPTIONS``, with ``scratch`` for its temporary files."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        # Pyomo reads docstrings when it is imported, which a user's PYTHONOPTIMIZE=2 would drop.
        ours = {**ONE_THREAD, "PYTHONOPTIMIZE": "", "TMPDIR": str(scratch)}
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", module, str(reading), *options),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(reading,),
                start_new_session=True,
                env={**os.environ, **ours},
                limit=2**26,
            )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return cls(process, writing)

    async def ask(self, question: object, kind: type[T]) -> T:
        """Send ``question``; returns its answer, as :meth:`answer` does."""
        assert self._process.stdin is not None
        self._process.stdin.write(framed(msgspec.msgpack.encode(question)))
        await self._process.stdin.drain()
        return await self.answer(kind)

    async def answer(self, kind: type[T]) -> T:
        """The next answer, a ``kind``; ``EOFError`` if the process has ended."""
        assert self._process.stdout is not None
        head = await self._process.stdout.readexactly(HEAD_BYTES)
        return msgspec.msgpack.decode(await self._process.stdout.readexactly(length_of(head)), type=kind)

    async def kill(self) -> None:
        """Kill it and everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        os.close(self._lifeline)


class Parent:
    """In the child: the coordinator, which asks. What libraries print from now on goes to stderr.

    The kernel kills this process group when the other end of the pipe ``lifeline`` closes. If it closed while this
    process was starting, exit at once.
    """

    def __init__(self, lifeline: int) -> None:
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        os.set_inheritable(lifeline, False)
        closed = select.poll()
        closed.register(lifeline, 0)  # a hangup is always reported
        if closed.poll(0):
            sys.exit()
        self._answers = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def questions(self, kind: type[T]) -> Iterator[T]:
        """Yield each question until stdin closes; the next one comes after its :meth:`answer`."""
        requests = sys.stdin.buffer
        while len(head := requests.read(HEAD_BYTES)) == HEAD_BYTES:
            yield msgspec.msgpack.decode(requests.read(length_of(head)), type=kind)

    def answer(self, answer: object) -> None:
        """Send one answer."""
        self._answers.write(framed(msgspec.msgpack.encode(answer)))
        self._answers.flush()
