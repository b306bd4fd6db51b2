"""The runs of a check: for each a world, and the processes of the script in it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from pilot.core.errors import PilotError
from pilot.core.pool.evidence import headline, is_refusal, last_words
from pilot.host import proc
from pilot.train.check.courses import Course
from pilot.train.check.records import Record, read
from pilot.train.check.settings import LARGEST, LOG, READY, Job, Run
from pilot.train.check.world import Killed, World, serve

_END_S = 30.0
"""Time within which the processes of a sandbox end with it."""
NO_SESSION = "the script ended without a step of a pilot.train session: nothing to check"


class Failed(PilotError):
    """A run did not reach its end. ``refused``: the session refused the script; ``late``: there was no time left."""

    def __init__(self, message: str, *, refused: bool = False, late: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        self.late = late


class Unfit(PilotError):
    """This machine makes no sandbox."""


@dataclass(frozen=True)
class Subject:
    """What is checked. ``stages``: where those are ordered. ``files``: the user's Python files that its runs have
    loaded, by path, with their SHA-256; ``imports``: and the packages' modules.
    """

    job: Job
    stages: socket.socket
    files: dict[str, str] = field(default_factory=dict)
    imports: dict[str, None] = field(default_factory=dict)


class Playing(World):
    """A run that has begun; ``patience_s``: the longest that a rank waits for others.

    After :meth:`end`, ``records`` are what its processes recorded; ``failed``: why it did not reach its end.
    """

    def __init__(self, subject: Subject, run: Run, course: Course, patience_s: float | None = None) -> None:
        super().__init__(course.ends, deadline_s=patience_s)
        self._subject = subject
        self._run = run
        self._folder = Path(subject.job.folder, f"run-{time.monotonic_ns()}")
        self._folder.mkdir()
        self.records: list[list[Record]] = []
        self.failed: Failed | None = None
        self._runs: list[Run] = []
        self._threads: list[threading.Thread] = []
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(subject.stages, [msgspec.json.encode([*subject.imports])], [theirs.fileno()])
        self._orders.settimeout(max(0.1, subject.job.until_s - time.monotonic()))
        try:
            said = self._orders.recv(LARGEST)
        except TimeoutError:
            raise Failed("there was no time left: its sandbox is not there yet", late=True) from None
        if said != READY:
            raise Unfit(said.decode())
        self.spawn(course.count)

    def end(self) -> None:
        """Wait for its end."""
        until_s = self._subject.job.until_s
        try:
            while not self.errors and (alive := [one for one in self._threads if one.is_alive()]):
                alive[0].join(max(0.0, min(0.5, until_s - time.monotonic())))
                if time.monotonic() > until_s:
                    self.fail(Failed("there was no time left", late=True))
        finally:
            self.stop()
        self.records = [list(self._records(run)) for run in self._runs]
        why = self.errors[0]
        if isinstance(why, Failed):
            self.failed = why
        elif not any(self.records):
            self.failed = Failed(NO_SESSION, refused=True)
        elif not any(record.last for one in self.records for record in one):
            self.failed = Failed("no process of it reached the loop's end")

    def stop(self) -> None:
        """End all of its processes, with its stage."""
        self.fail(Killed())
        self._orders.close()
        for thread in self._threads:
            thread.join(_END_S)

    def start_rank(self) -> None:
        """Start a process, and a thread that attends it."""
        run = msgspec.structs.replace(self._run, place=str(self._folder / str(len(self._runs))))
        (ours, theirs), (life, end_of_life) = socket.socketpair(), os.pipe()
        with theirs, suppress(OSError):  # the stage has ended, as the thread finds
            socket.send_fds(self._orders, [msgspec.json.encode(run)], [theirs.fileno(), end_of_life])
        os.close(end_of_life)
        given = run, Connection(ours.detach()), life
        self._runs.append(run)
        self._threads.append(threading.Thread(target=self._attend, args=given, daemon=True))
        self._threads[-1].start()

    def is_working(self) -> bool:
        """Also if it is one of another run."""
        return any(proc.is_working(process) for process in proc.tree(os.getpid())[1:])

    def _attend(self, run: Run, connection: Connection, life: int) -> None:
        with open(life, "rb") as open_until_it_ends:
            try:
                if not serve(self.member(), connection):
                    open_until_it_ends.read()
                    self.fail(_failure(run))
            except Exception as error:
                self.fail(Failed(f"{error}"))

    def _records(self, run: Run) -> Iterator[Record]:
        for one in read(run):
            if isinstance(one, Record):
                yield one
            else:
                self._subject.files.update(one.files)
                self._subject.imports.update(dict.fromkeys(one.modules))


def _failure(run: Run) -> Failed:
    """Why a process of a script ended, by its last words."""
    log = Path(f"{run.place}{LOG}")
    tail = log.read_text(errors="replace").strip() if log.exists() else ""
    tail = tail or "the script ended without output"
    return Failed(headline(last_words(tail)), refused=is_refusal(tail))
