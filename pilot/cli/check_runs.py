"""The runs of ``pilot check``: the script in separate processes, alone and as two ranks, up to its first step."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from pilot.agent.diagnosis import is_refusal, last_words
from pilot.agent.fork_server import HASHES
from pilot.core.errors import PilotError
from pilot.core.evidence import headline
from pilot.io import proc

ROUNDING = 4096.0
"""Tolerance, in rounding errors of the data type: equal gradients may be summed in a different order."""

SMALL = 1e-4
"""Gradients below this fraction of the largest norm are compared relative to it: they may be mere rounding."""

_POLL_S = 0.05


class Gradient(msgspec.Struct, frozen=True):
    """See :class:`pilot.train.ranks.check_group.Compared`."""

    name: str
    alone: float
    ranks: float
    difference: float
    product: float
    digits: float

    def differs(self, largest: float) -> bool:
        """``largest``: the largest norm of all."""
        return not self.difference <= ROUNDING * self.digits * max(self.alone, SMALL * largest)

    def in_words(self) -> str:
        """How it differs, and the likely cause."""
        if not (self.alone and self.ranks):
            return f"its norm is {self.alone:.3g} alone and {self.ranks:.3g} on two ranks"
        ratio, cosine = self.ranks / self.alone, self.product / (self.alone * self.ranks)
        if cosine > 1 - 1e-3:
            return (
                f"on two ranks it is {ratio:.3g} times its value on one: the loss is not a mean over the batch (a sum,"
                " or divided by something else)"
            )
        return (
            f"on two ranks it is different (cosine {cosine:.3g}, norms {self.alone:.3g} and {self.ranks:.3g}): a"
            " sample's loss depends on the others in its batch (as a contrastive loss does), or on the rank"
        )


class Seen(msgspec.Struct, frozen=True):
    """What a run reports."""

    samples: int
    loss: float
    by_design: list[str] = []
    compared: list[Gradient] = []


class Failed(PilotError):
    """A run did not complete its first step. ``refused``: the session refused it."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class Runs:
    """The runs of one check, in ``folder``, which also holds their temporary files."""

    def __init__(self, folder: Path, command: list[str], limit_s: float) -> None:
        self._folder = folder
        self._command = command
        self._limit_s = limit_s

    def play(self, size: int) -> list[Seen]:
        """The reports of ``size`` ranks; :class:`Failed` with the last output of the first one to fail."""
        with ExitStack() as stack:
            ends = [stack.enter_context(end) for end in socket.socketpair()] if size == 2 else []
            logs = [stack.enter_context((self._folder / f"log-{rank}").open("wb+")) for rank in range(size)]
            processes = [self._start(rank, size, log, ends) for rank, log in enumerate(logs)]
            try:
                for end in ends:
                    end.close()
                self._wait(processes)
            finally:
                for process in processes:
                    proc.kill([*proc.tree(process.pid), *proc.session(process.pid)])
                    process.wait()
            return [self._report(rank, size) for rank in range(size)]

    def _start(self, rank: int, size: int, log: Any, ends: list[Any]) -> subprocess.Popen[bytes]:
        link = ends[rank].fileno() if ends else -1
        seat = {"rank": rank, "size": size, "folder": str(self._folder), "link": link}
        environment = {
            "PILOT_CHECK": msgspec.json.encode(seat).decode(),
            "PILOT_LOCAL_SIZE": str(
                size
            ),  # both on one node, so that they share the batch_size= that one alone would get
            "TMPDIR": str(self._folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=HASHES | dict(os.environ) | environment,
            pass_fds=[link] if ends else [],
            start_new_session=True,
        )

    def _wait(self, processes: list[subprocess.Popen[bytes]]) -> None:
        deadline_s = time.monotonic() + self._limit_s
        while any(process.poll() is None for process in processes):
            for rank, process in enumerate(processes):
                if process.poll() not in (None, 0):
                    self._say_why(rank)
            if time.monotonic() > deadline_s:
                raise Failed(f"no step within {self._limit_s:g} s (--limit-s)", refused=False)
            time.sleep(_POLL_S)

    def _report(self, rank: int, size: int) -> Seen:
        try:
            return msgspec.json.decode((self._folder / f"report-{rank}-of-{size}.json").read_bytes(), type=Seen)
        except FileNotFoundError:
            self._say_why(rank)

    def _say_why(self, rank: int) -> NoReturn:
        logs = [self._folder / f"log-{number}" for number in (rank, 1 - rank)]  # a rank also ends when the other does
        tails = [log.read_text(errors="replace") for log in logs if log.exists()]
        tail = next((text for text in tails if text.strip()), "the script ended without output")
        raise Failed(headline(last_words(tail)), refused=is_refusal(tail))
