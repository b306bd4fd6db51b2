"""Tries inputs in a child process: one that crashes it, hangs it or takes too much memory has failed, and a new child
goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.security.fuzz.target import Target, outcome

_FORK = multiprocessing.get_context("fork")
FAILED = "FAILED"


@dataclass
class Result:
    """How often each outcome occurred; for each failure, its input's number and what happened."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)


def evenly(target: Target, few: int) -> range:
    """The numbers of ``few`` inputs, evenly spaced."""
    return range(0, target.inputs, max(1, target.inputs // few))


def try_all(target: Target, seed: int, numbers: Sequence[int]) -> Result:
    """Try the inputs ``numbers``."""
    result = Result()
    child = _Child(target, seed)
    for number in numbers:
        word, what = child.attempt(number)
        result.counts[word] += 1
        if word == FAILED:
            result.failures.append((number, what))
        if not child.is_alive():
            child.end()
            child = _Child(target, seed)
    child.end()
    return result


class _Child:
    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._folder = tempfile.TemporaryDirectory(prefix="pilot-fuzz-")
        self._pipe, theirs = _FORK.Pipe()
        ends = theirs, self._pipe
        self._process = _FORK.Process(target=_serve, args=(target, seed, *ends, Path(self._folder.name)))
        self._process.start()
        theirs.close()

    def attempt(self, number: int) -> tuple[str, str]:
        self._pipe.send(number)
        try:
            if self._pipe.poll(self._target.limit_s):
                word, what = self._pipe.recv()
                return word, what
        except (EOFError, ConnectionError):
            self._process.join()
            return FAILED, f"the process ended with status {self._process.exitcode}"
        self._process.kill()
        self._process.join()
        return FAILED, f"nothing after {self._target.limit_s:g} s"

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def end(self) -> None:
        self._pipe.close()
        self._process.join(self._target.limit_s)
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def _serve(target: Target, seed: int, pipe: Connection, other: Connection, folder: Path) -> None:
    other.close()  # otherwise the parent's end would never appear closed
    torch.set_num_threads(1)  # a fork has none of torch's threads, and would wait for them if the parent had some
    _be_quiet(folder)
    place = target.prepare(folder)
    _limit(target.memory_bytes)
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        pipe.send(_one(target, place, target.input(seed, number)))


def _one(target: Target, place: Any, value: Any) -> tuple[str, str]:
    try:
        return outcome(lambda: target.attempt(place, value)), ""
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = next((f for f in reversed(frames) if "/pilot/" in f.filename), frames[-1])
        return FAILED, f"{type(error).__name__}: {str(error)[:300]!r} at {Path(where.filename).name}:{where.lineno}"


def _be_quiet(folder: Path) -> None:
    """Libraries' output goes to a file; the folder is the current directory and all that we have."""
    said = os.open(folder / "said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(folder)
    os.environ.update(HOME=str(folder), XDG_STATE_HOME=str(folder / "state"), XDG_CONFIG_HOME=str(folder / "config"))


def _limit(memory_bytes: int) -> None:
    """This much address space beyond what the libraries already use."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
