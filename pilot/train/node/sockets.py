"""A worker's sockets: to its agent, and to its rank processes. No decisions are made here."""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pilot.comm.channel import Channel, PeerGone, close_inherited, listen
from pilot.comm.messages import Answer, AnyNote, Here, SpreadDone
from pilot.core.errors import ORPHANED_STATUS, REFUSAL, ProtocolError, UserError
from pilot.host.system import readable
from pilot.protocol import wire
from pilot.protocol.framing import Frames, framed

MAX_UNIDENTIFIED = 16
"""Most connections that have not sent anything yet; if there are more, the oldest is closed."""


def inherited(fd: int) -> socket.socket:
    """The socket ``fd``, which this process has from the one that pilot started; UserError if it has not."""
    try:
        return socket.socket(fileno=fd)
    except OSError:
        raise UserError(
            "pilot.train.session is called in a new interpreter that the script starts (by subprocess, exec or spawn),"
            " but pilot itself starts the processes that train: call it in the script's own process; for"
            " torch.multiprocessing.spawn(train, (world_size,)) write train(0, 1)"
        ) from None


@dataclass(frozen=True, slots=True)
class RankConnected:
    """Our rank process of ``generation`` is in MPI."""

    generation: int


@dataclass(frozen=True, slots=True)
class RankMessage:
    """A note, perhaps with a descriptor, from the rank process of ``generation``; None: its doorbell."""

    generation: int
    note: AnyNote | None
    fd: int | None


@dataclass(frozen=True, slots=True)
class RankGone:
    """The rank process of ``generation`` has ended."""

    generation: int


WorkerEvent = wire.ToAgent | RankConnected | RankMessage | RankGone


class WorkerSockets:
    """All sockets of a worker, waited for together: ``control_fd`` is a stream socket to the agent; rank processes come
    to ``worker_socket``.
    """

    def __init__(self, control_fd: int, worker_socket: Path) -> None:
        self._control = inherited(control_fd)
        self._frames = Frames(wire.MAX_FRAME_BYTES)
        self._sending = threading.Lock()
        self._listener = listen(worker_socket)
        self._unidentified: list[Channel] = []
        self._channels: dict[int, Channel] = {}
        _close_in_forked_children(self)

    def tell(self, message: wire.Message) -> None:
        """Send a message to the agent, in a frame; from any thread. A worker without an agent is an orphan and exits at
        once."""
        frame = framed(wire.encode(message))
        with self._sending:
            try:
                self._control.sendall(frame)
            except OSError:
                os._exit(ORPHANED_STATUS)

    def channel(self, generation: int) -> Channel:
        """The channel to the rank process of ``generation``; :class:`~pilot.comm.channel.PeerGone` if there is
        none."""
        try:
            return self._channels[generation]
        except KeyError:
            raise PeerGone from None

    def drop(self, generation: int) -> None:
        """Close the connection to the rank process of ``generation``, which ends it."""
        if generation in self._channels:
            self._channels.pop(generation).close()

    def hang_up(self, generation: int) -> bool:
        """Have the rank process of ``generation`` end; ``RankGone`` follows. False if there is none."""
        if generation not in self._channels:
            return False
        self._channels[generation].hang_up()
        return True

    def wait(self, timeout_s: float | None = None) -> Iterator[WorkerEvent]:
        """Wait up to ``timeout_s`` (None: no limit) for something to happen, and yield everything that has, the agent's
        messages first.
        """
        ready = readable(self.fds(), timeout_s)
        if self._control.fileno() in ready:
            yield from self._agent_messages()
        for generation, channel in list(self._channels.items()):
            if channel.fileno() in ready:
                yield self._receive(generation, channel)
        for connection in [s for s in self._unidentified if s.fileno() in ready]:
            yield from self._introduce(connection)
        if self._listener.fileno() in ready:
            self._unidentified.append(Channel(self._listener.accept()[0]))
            if len(self._unidentified) > MAX_UNIDENTIFIED:
                self._unidentified.pop(0).close()

    def fds(self) -> list[int]:
        """Every descriptor that a forked child must not keep."""
        ends: list[socket.socket | Channel] = [self._control, self._listener, *self._unidentified]
        return [end.fileno() for end in (*ends, *self._channels.values())]

    def _agent_messages(self) -> Iterator[wire.ToAgent]:
        """What the agent has sent."""
        try:
            piece = self._control.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:
            os._exit(ORPHANED_STATUS)
        try:
            for frame in self._frames.feed(piece):
                yield wire.decode_at_agent(frame)
        except ProtocolError as error:  # an agent that sends nonsense is useless
            print(f"{REFUSAL}this process ends because of what its agent sent: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def _receive(self, generation: int, channel: Channel) -> WorkerEvent:
        try:
            return RankMessage(generation, *_answer(channel))
        except (PeerGone, ProtocolError):  # a rank process that sends nonsense is useless
            if self._channels.get(generation) is channel:
                self.drop(generation)
            return RankGone(generation)

    def _introduce(self, connection: Channel) -> Iterator[WorkerEvent]:
        self._unidentified.remove(connection)
        note, fd = None, None
        with suppress(PeerGone, ProtocolError):
            note, fd = connection.receive()
        if fd is not None:
            os.close(fd)
        if not isinstance(note, Here) or note.generation in self._channels:
            connection.close()
            return
        self._channels[note.generation] = connection
        yield RankConnected(note.generation)


def _answer(channel: Channel) -> tuple[AnyNote | None, int | None]:
    """A message from a known rank process; :class:`ProtocolError` if it is not an answer."""
    note, fd = channel.receive()
    if fd is not None and not isinstance(note, SpreadDone):
        os.close(fd)
        raise ProtocolError("a descriptor came with what needs none")
    if not isinstance(note, Answer | None):
        raise ProtocolError(f"a rank process does not say {type(note).__name__}")
    return note, fd


def _close_in_forked_children(link: WorkerSockets) -> None:
    """DataLoader's workers are forked from a worker: if they kept its sockets open, its death would go unnoticed."""
    reference = weakref.ref(link)

    def close() -> None:
        survivor = reference()
        for fd in survivor.fds() if survivor is not None else []:
            close_inherited(fd)

    os.register_at_fork(after_in_child=close)
