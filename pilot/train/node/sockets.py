"""A worker's sockets: to its agent, and to its rank processes. No decisions are made here."""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
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
"""The largest number of connections that have not sent anything yet; the oldest one above it is closed."""


def inherited(fd: int) -> socket.socket:
    """Return the socket ``fd``, inherited from the process that pilot started; :class:`UserError` if it is not open."""
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
    """The rank process of ``generation`` is in MPI, and has connected."""

    generation: int


@dataclass(frozen=True, slots=True)
class RankMessage:
    """A message from the rank process of ``generation``: a note, perhaps with a descriptor, or its doorbell (None)."""

    generation: int
    note: AnyNote | None
    fd: int | None


@dataclass(frozen=True, slots=True)
class RankGone:
    """The rank process of ``generation`` has ended."""

    generation: int


WorkerEvent = wire.ToAgent | RankConnected | RankMessage | RankGone


_sockets: list[WorkerSockets] = []


def worker_sockets(environment: Mapping[str, str]) -> WorkerSockets:
    """Return the sockets of this process, as the agent's environment variables name them: always the same object."""
    if not _sockets:
        _sockets.append(WorkerSockets(int(environment["PILOT_CONTROL_FD"]), Path(environment["PILOT_WORKER_SOCKET"])))
    return _sockets[0]


class WorkerSockets:
    """All sockets of a worker: ``control_fd`` to its agent, and those of rank processes at ``worker_socket``."""

    def __init__(self, control_fd: int, worker_socket: Path) -> None:
        self._control = inherited(control_fd)
        self._frames = Frames(wire.MAX_FRAME_BYTES)
        self._sending = threading.Lock()
        self._listener = listen(worker_socket)
        self._unidentified: list[Channel] = []
        self._kept: list[WorkerEvent] = []
        self._channels: dict[int, Channel] = {}
        _close_in_forked_children(self)

    def send(self, message: wire.Message) -> None:
        """Send a message to the agent, from any thread. A worker without an agent is an orphan and exits at once."""
        frame = framed(wire.encode(message))
        with self._sending:
            try:
                self._control.sendall(frame)
            except OSError:
                os._exit(ORPHANED_STATUS)

    def channel(self, generation: int) -> Channel:
        """Return the channel to the rank process of ``generation``; :class:`~pilot.comm.channel.PeerGone` if none."""
        try:
            return self._channels[generation]
        except KeyError:
            raise PeerGone from None

    def drop(self, generation: int) -> None:
        """Close the connection to the rank process of ``generation``, which ends it."""
        if generation in self._channels:
            self._channels.pop(generation).close()

    def hang_up(self, generation: int) -> bool:
        """Make the rank process of ``generation`` end, so that ``RankGone`` follows; return whether there is one."""
        if generation not in self._channels:
            return False
        self._channels[generation].hang_up()
        return True

    def wait(self, timeout_s: float | None = None) -> Iterator[WorkerEvent]:
        """Wait up to ``timeout_s`` (None: no limit) for events, and yield them, the agent's messages first."""
        while self._kept:
            yield self._kept.pop(0)
            timeout_s = 0.0
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

    def keep(self, events: Sequence[WorkerEvent]) -> None:
        """Have the next :meth:`wait` yield ``events``."""
        self._kept += events

    def fds(self) -> list[int]:
        """Return the descriptors of all sockets, which a forked child must close."""
        ends: list[socket.socket | Channel] = [self._control, self._listener, *self._unidentified]
        return [end.fileno() for end in (*ends, *self._channels.values())]

    def _agent_messages(self) -> Iterator[wire.ToAgent]:
        """Yield the messages that the agent has sent."""
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
            print(f"{REFUSAL}this process ends: invalid message from its agent: {error}", file=sys.stderr, flush=True)
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
    """Return the next message of a known rank process; :class:`ProtocolError` if it is not an answer."""
    note, fd = channel.receive()
    if fd is not None and not isinstance(note, SpreadDone):
        os.close(fd)
        raise ProtocolError("unexpected descriptor from a rank process")
    if not isinstance(note, Answer | None):
        raise ProtocolError(f"unexpected message from a rank process: {type(note).__name__}")
    return note, fd


def _close_in_forked_children(link: WorkerSockets) -> None:
    """Close the sockets in forked children (a DataLoader's workers), so that the worker's end is noticed."""
    reference = weakref.ref(link)

    def close() -> None:
        survivor = reference()
        for fd in survivor.fds() if survivor is not None else []:
            close_inherited(fd)

    os.register_at_fork(after_in_child=close)
