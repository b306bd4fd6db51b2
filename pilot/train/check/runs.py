"""The runs of a check: for each a world, and the processes of the script in it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from pilot.core.errors import PilotError
from pilot.core.evidence import headline
from pilot.core.last_words import is_refusal, last_words
from pilot.io import proc
from pilot.train.check import sandbox
from pilot.train.check.link import serve
from pilot.train.check.records import Record, read
from pilot.train.check.settings import SEAT, Run
from pilot.train.check.world import End, World

NO_SESSION = "the script ended without a step of a pilot.train session: nothing to check"


class Failed(PilotError):
    """A run did not reach its end. ``refused``: the session refused the script; ``late``: there was no time left."""

    def __init__(self, message: str, *, refused: bool = False, late: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        self.late = late


@dataclass(frozen=True)
class Subject:
    """What is checked: ``script`` with ``arguments``, by the interpreter ``python`` in an ``environment``; files are in
    ``folder``; ``covered``: in a sandbox. ``until_s``: when there is no time left (``time.monotonic``).
    """

    script: str
    arguments: Sequence[str]
    python: str
    environment: Mapping[str, str]
    folder: Path
    covered: bool
    until_s: float


@dataclass
class Played:
    """What the processes of a run recorded; ``failed``: why it did not reach its end."""

    records: list[list[Record]] = field(default_factory=list)
    failed: Failed | None = None

    def first(self) -> list[Record]:
        """Those of the first process."""
        return self.records[0] if self.records else []


class Playing:
    """A run that has begun, with ``count`` ranks whose generations end so; :meth:`result` waits for it."""

    def __init__(self, subject: Subject, run: Run, count: int, ends: Sequence[End] = ()) -> None:
        self._subject = subject
        self._run = run
        self._folder = subject.folder / f"run-{time.monotonic_ns()}"
        self._folder.mkdir()
        self._world = World(self._spawn, ends)
        self._threads: list[threading.Thread] = []
        self._why: Failed | None = None
        self._born = 0
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = [subject.python, "-P", "-m", "pilot.train.check.program"]
        with theirs, (self._folder / "program").open("wb") as log:
            self._process = subprocess.Popen(
                sandbox.command(subject.folder, program) if subject.covered else program,
                stdin=theirs.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**subject.environment, "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
        with self._world.changed:
            self._world.spawn(count)

    def result(self) -> Played:
        """Wait for its end."""
        try:
            while alive := [one for one in self._threads if one.is_alive()]:
                alive[0].join(max(0.0, min(0.5, self._subject.until_s - time.monotonic())))
                if time.monotonic() > self._subject.until_s:
                    self._fail(Failed("there was no time left", late=True))
                    break
        finally:
            self.stop()
        records = [read(self._folder / f"records-{number}") for number in range(1, self._born + 1)]
        if self._why is None and not any(records):
            self._why = Failed(NO_SESSION, refused=True)
        if self._why is None and not any(record.last for one in records for record in one):
            self._why = Failed("no process of it reached the loop's end")
        return Played(records, self._why)

    def stop(self) -> None:
        """End all of its processes."""
        self._channel.close()
        if self._process.poll() is None:
            proc.kill([*proc.tree(self._process.pid), *proc.session(self._process.pid)])
            self._process.wait()

    def _spawn(self, count: int) -> None:
        for _ in range(count):
            self._born += 1
            (ours, theirs), (life, end_of_life) = socket.socketpair(), os.pipe()
            records = str(self._folder / f"records-{self._born}")
            run = msgspec.json.encode(msgspec.structs.replace(self._run, records=records)).decode()
            job = {
                "script": self._subject.script,
                "arguments": list(self._subject.arguments),
                "log": str(self._folder / f"log-{self._born}"),
                "environment": {SEAT: run, "TMPDIR": str(self._folder)},
            }
            with theirs, suppress(OSError):  # the program has ended, as the thread finds
                socket.send_fds(self._channel, [json.dumps(job).encode()], [theirs.fileno(), end_of_life])
            os.close(end_of_life)
            given = self._born, Connection(ours.detach()), life
            thread = threading.Thread(target=self._attend, args=given, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _attend(self, number: int, connection: Connection, life: int) -> None:
        with open(life, "rb") as open_until_it_ends:
            try:
                if not serve(self._world, connection):
                    open_until_it_ends.read()
                    self._fail(self._failure(number))
            except Exception as error:
                self._fail(Failed(f"{error}"))

    def _fail(self, why: Failed) -> None:
        with self._world.changed:
            if self._why is None and not self._world.errors:
                self._why = why
            self._world.fail(why)

    def _failure(self, number: int) -> Failed:
        logs = [self._folder / f"log-{number}", self._folder / "program"]
        tails = [log.read_text(errors="replace") for log in logs if log.exists()]
        tail = next((text for text in tails if text.strip()), "the script ended without output")
        return Failed(headline(last_words(tail)), refused=is_refusal(tail))
