"""The runs of a check: each is a world whose ranks are processes of the script."""

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
from pilot.train.check.records import Record, read
from pilot.train.check.scenarios import Scenario
from pilot.train.check.settings import LARGEST, LOG, READY, CheckedRun, CheckSettings
from pilot.train.check.world import Killed, RankWorld, serve

_END_S = 30.0
"""How long to wait for the processes of a sandbox to end."""
NO_SESSION = "the script ended without a step of a pilot.train session: nothing to check"


class RunFailed(PilotError):
    """A run did not reach its end. ``refused``: the session refused the script; ``late``: the time was up."""

    def __init__(self, message: str, *, refused: bool = False, late: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        self.late = late


class NoSandbox(PilotError):
    """This machine cannot make a sandbox."""


@dataclass(frozen=True)
class Subject:
    """The script under test. ``stages``: the socket for orders of stages; ``files``: SHA-256 of the user's Python files
    that its runs have loaded, by path; ``imports``: the modules of packages that they have loaded.
    """

    settings: CheckSettings
    stages: socket.socket
    files: dict[str, str] = field(default_factory=dict)
    imports: dict[str, None] = field(default_factory=dict)


class ScenarioRun(RankWorld):
    """A run of ``scenario``; ``patience_s``: the longest that a rank waits for others.

    :meth:`end` sets ``records``, those of each process, and ``failed``, the reason if it did not reach its end.
    """

    def __init__(self, subject: Subject, run: CheckedRun, scenario: Scenario, patience_s: float | None = None) -> None:
        super().__init__(scenario.ends, deadline_s=patience_s)
        self._subject = subject
        self._run = run
        self._folder = Path(subject.settings.folder, f"run-{time.monotonic_ns()}")
        self._folder.mkdir()
        self.records: list[list[Record]] = []
        self.failed: RunFailed | None = None
        self._runs: list[CheckedRun] = []
        self._threads: list[threading.Thread] = []
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(subject.stages, [msgspec.json.encode([*subject.imports])], [theirs.fileno()])
        self._orders.settimeout(max(0.1, subject.settings.until_s - time.monotonic()))
        try:
            answer = self._orders.recv(LARGEST)
        except TimeoutError:
            raise RunFailed("the time was up before the sandbox was ready", late=True) from None
        if answer != READY:
            raise NoSandbox(answer.decode())
        self.spawn(scenario.count)

    def end(self) -> None:
        """Wait for the end of the run, and read its records."""
        until_s = self._subject.settings.until_s
        try:
            while not self.errors and (alive := [one for one in self._threads if one.is_alive()]):
                alive[0].join(max(0.0, min(0.5, until_s - time.monotonic())))
                if time.monotonic() > until_s:
                    self.fail(RunFailed("the time was up", late=True))
        finally:
            self.stop()
        self.records = [list(self._records(run)) for run in self._runs]
        why = self.errors[0]
        if isinstance(why, RunFailed):
            self.failed = why
        elif not any(self.records):
            self.failed = RunFailed(NO_SESSION, refused=True)
        elif not any(record.last for one in self.records for record in one):
            self.failed = RunFailed("no process reached the end of the loop")

    def stop(self) -> None:
        """End the stage and all processes of the run."""
        self.fail(Killed())
        self._orders.close()
        for thread in self._threads:
            thread.join(_END_S)

    def start_rank(self) -> None:
        """Start a process for a rank, and a thread that answers it."""
        run = msgspec.structs.replace(self._run, place=str(self._folder / str(len(self._runs))))
        (ours, theirs), (life, end_of_life) = socket.socketpair(), os.pipe()
        with theirs, suppress(OSError):  # the stage has ended; the thread notices that
            socket.send_fds(self._orders, [msgspec.json.encode(run)], [theirs.fileno(), end_of_life])
        os.close(end_of_life)
        given = run, Connection(ours.detach()), life
        self._runs.append(run)
        self._threads.append(threading.Thread(target=self._attend, args=given, daemon=True))
        self._threads[-1].start()

    def is_working(self) -> bool:
        """Return whether any process of the check is working, also of another run."""
        return any(proc.is_working(process) for process in proc.tree(os.getpid())[1:])

    def _attend(self, run: CheckedRun, connection: Connection, life: int) -> None:
        with open(life, "rb") as open_until_it_ends:
            try:
                if not serve(self.member(), connection):
                    open_until_it_ends.read()
                    self.fail(_failure(run))
            except Exception as error:
                self.fail(RunFailed(f"{error}"))

    def _records(self, run: CheckedRun) -> Iterator[Record]:
        for one in read(run):
            if isinstance(one, Record):
                yield one
            else:
                self._subject.files.update(one.files)
                self._subject.imports.update(dict.fromkeys(one.modules))


def _failure(run: CheckedRun) -> RunFailed:
    """Return the reason why a process of the script ended, from the end of its log."""
    log = Path(f"{run.place}{LOG}")
    tail = log.read_text(errors="replace").strip() if log.exists() else ""
    tail = tail or "the script ended without output"
    return RunFailed(headline(last_words(tail)), refused=is_refusal(tail))
