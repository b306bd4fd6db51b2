"""A pool's use of its machine, sampled throughout: a row per process and quantity, appended to a CSV file."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pilot.comm.rank_order import WARM
from pilot.host import proc
from tests.pools import Pool, is_worker

EVERY_S = 30.0
POOL = "pool"
_MIB = 1 << 20
_COLUMNS = ("at_s", "who", "pid", "quantity", "value")
_ROLES = {"pilot.service.daemon": "coordinator", "pilot.service.planning.solver_child": "solver"}
_ROLES["pilot.service.planning.sampler_child"] = "sampler"


@dataclass(frozen=True, slots=True)
class Sample:
    """The ``value`` of ``quantity`` for the process ``pid`` in the role ``who``, or for the pool (pid 0)."""

    at_s: float
    who: str
    pid: int
    quantity: str
    value: float


class Sampler:
    """Samples ``pool`` in a thread of its own. ``lasting``: the trainer that lasts throughout."""

    def __init__(self, pool: Pool, lasting: str, path: Path) -> None:
        self.path, self._pool = path, pool
        self._lasting = pool.run_dir / "trainers" / lasting
        self._began_s, self._segments = time.time(), set[str]()
        self._done = threading.Event()
        with path.open("w", newline="") as file:
            csv.writer(file).writerow(_COLUMNS)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(EVERY_S):
            at_s = time.time() - self._began_s
            processes = proc.marked(f"PILOT_RUN_DIR={self._pool.run_dir}")
            with self.path.open("a", newline="") as file:
                out = csv.writer(file)
                for process in processes:
                    out.writerows(_of_process(process, at_s))
                out.writerows((f"{at_s:.0f}", POOL, 0, *entry) for entry in self._of_pool(processes))

    def _of_pool(self, processes: list[psutil.Process]) -> Iterator[tuple[str, float]]:
        run_dir = self._pool.run_dir
        journal, trainers = _files(run_dir, "journal*"), _files(run_dir, "trainers")
        rest = [size for size in _files(run_dir, "*") if size is not None]
        yield "journal MiB", sum(journal) / _MIB
        yield "other files", len(rest) - len(journal) - len(trainers)
        yield "other files MiB", (sum(rest) - sum(journal) - sum(trainers)) / _MIB
        lasting, logs = _files(self._lasting, "*"), _files(self._lasting, "logs")
        yield "lasting trainer's files", len(lasting) - len(logs)  # logs are kept only for the newest 200 pilots
        yield "lasting trainer's MiB", sum(lasting) / _MIB
        # Segments that were once ours and still exist, whichever process has them mapped now.
        self._segments |= {name for process in processes for name in proc.segments(process.pid)}
        segments = {name: size for name in self._segments if (size := _size(proc.SHARED_MEMORY / name)) is not None}
        yield "segments in /dev/shm", len(segments)
        yield "segments MiB", sum(segments.values()) / _MIB
        agents = sum(agent.poll() is None for agent in self._pool.agents)
        yield "processes per pilot", len(processes) / max(1, agents)


def read(path: Path) -> list[Sample]:
    """The samples of a CSV file; none if it does not exist."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        Sample(float(row["at_s"]), row["who"], int(row["pid"]), row["quantity"], float(row["value"])) for row in rows
    ]


def _of_process(process: psutil.Process, at_s: float) -> Iterator[tuple[Any, ...]]:
    try:
        who = _role(process)
        if not who:
            return
        memory = process.memory_full_info()
        found = {
            "RSS MiB": f"{memory.rss / _MIB:.2f}",
            "PSS MiB": f"{memory.pss / _MIB:.2f}",
            "anonymous MiB": f"{_anonymous_kib(process.pid) / 1024:.2f}",
            "threads": process.num_threads(),
            **_descriptors(process.pid),
        }
    except (psutil.Error, OSError):  # it has just ended
        return
    for quantity, value in found.items():
        yield f"{at_s:.0f}", who, process.pid, quantity, value


def _anonymous_kib(pid: int) -> int:
    """Memory that is no file's, whether a fork shares it or not: so it does not change when a neighbour ends, or when
    a library's page is used for the first time."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    raise psutil.ZombieProcess(pid)


def _role(process: psutil.Process) -> str:
    """Its role in the pool; empty for a command that somebody typed."""
    if is_worker(process):
        return "worker"
    if process.name() == WARM:
        return WARM
    command = process.cmdline()
    if "-m" not in command:
        return ""
    module, word = [*command[command.index("-m") + 1 :], ""][:2]
    if module == "pilot":
        return word if word == "agent" else ""
    return _ROLES.get(module, module.rpartition(".")[2].replace("_", " "))


def _descriptors(pid: int) -> dict[str, int]:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            links.append(str(entry.readlink()))
        except FileNotFoundError:
            continue
    return {"open files": len(links), "sockets": sum(link.startswith("socket:") for link in links)}


def _files(folder: Path, pattern: str) -> list[int]:
    """The sizes of the files in ``folder`` that match, or are below a folder that does."""
    paths = (path for top in folder.glob(pattern) for path in (top.rglob("*") if top.is_dir() else [top]))
    return [size for path in paths if not path.is_dir() and (size := _size(path)) is not None]


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return None
