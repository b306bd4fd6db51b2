"""A coordinator after weeks: its restart time, its memory, and its files on disk.

A real coordinator starts a pool and is killed. The real driver then continues its journal on a simulated clock: days of
ten trainers on a hundred nodes that come and go, 8,000 events a day in all, mostly progress with its ledger. Then the
coordinator is started as ``pilot up`` starts it, and the time until it answers is measured: from its snapshot, and
again with the snapshot damaged, so that the whole journal is replayed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.completion import completion
from pilot import planners
from pilot.core.commands import Command, FormGroup, Solve
from pilot.core.coordinator import Coordinator
from pilot.core.errors import PilotError
from pilot.core.events import (
    Event,
    LedgerRange,
    PoolChanged,
    Progress,
    TrainerFinished,
    TrainerSubmitted,
)
from pilot.core.ids import NodeId, TrainerId, TrainerUid
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol.pool_client import PoolClient
from pilot.rundir import segments
from pilot.rundir.journal import read
from pilot.rundir.rundir import RunDir
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.durability.restore import restore
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.settings import fresh_core
from pilot.submission.submission import LaunchSpec

EVENTS_A_DAY = 8000
TRAINERS = 10
NODES = 100
PROGRESS_PER_CHANGE = 12
EPOCH_SAMPLES = 1_000_000
BATCH = 32
START_LIMIT_S = 600.0

SITE = """
from pilot.site.site import Site
site = Site(name="bench", scheduler="local", bind_address="127.0.0.1", interface="lo", check="off")
"""


class Simulated(Coordinator):
    """The core, and its last commands."""

    def handle(self, now_s: float, event: Event) -> list[Command]:
        self.given = super().handle(now_s, event)
        return self.given


class Weeks:
    """A pool that lives long: every command is completed at once, nodes come and go, trainers report."""

    def __init__(self, driver: LiveDriver, launches: LaunchStore, day_s: list[float]) -> None:
        self.driver = driver
        self._launches = launches
        self._clock = day_s
        self._rng = random.Random(1)
        self._best = planners.make("dp")
        self._names = itertools.count()
        self._submitted = itertools.count()
        self.events = 0

    async def day(self) -> None:
        """8,000 events; one trainer finishes, another arrives."""
        end, step_s = self.events + EVENTS_A_DAY, 86400 / EVENTS_A_DAY
        self._finish_one()
        while self.events < end:
            self._clock[0] += step_s * (8 + PROGRESS_PER_CHANGE)
            for event in self._change():
                self._tell(event)
            for _ in range(PROGRESS_PER_CHANGE):
                last = self._tell(self._progress())
            await asyncio.wrap_future(last)

    def _change(self) -> Iterator[Event]:
        while len(self.driver.monitor.open) < TRAINERS:
            name = TrainerId(f"t{next(self._submitted)}")
            spec = TrainerSpec(name, max_nodes=16, uid=TrainerUid(f"{self._rng.getrandbits(128):032x}"))
            self._launches.add(spec, LaunchSpec("/s.py", "", [], "/", "python", {}))
            yield TrainerSubmitted(spec)
        nodes = self.driver.core.pool.nodes
        if len(nodes) >= NODES or (nodes and self._rng.random() < 0.4):
            yield PoolChanged(lost=(self._rng.choice(nodes),), cause="its connection closed")
        else:
            yield PoolChanged(joined=(NodeId(f"node{self._rng.randrange(500)}.p{next(self._names)}"),))

    def _finish_one(self) -> None:
        trainers = self.driver.core.trainers
        running = [trainers[t] for t in self.driver.monitor.open if trainers[t].group is not None]
        if running:
            self._tell(TrainerFinished(running[0].id, running[0].generation, running[0].step, running[0].samples))

    def _progress(self) -> Event:
        """One more second of a running trainer, with its ledger rows."""
        running = [t for t in self.driver.core.trainers.values() if t.open and t.group is not None]
        if not running:
            return PoolChanged()
        trainer = self._rng.choice(running)
        assert trainer.group is not None
        batch = BATCH * len(trainer.group.members)
        epoch, cursor = divmod(trainer.samples, EPOCH_SAMPLES)
        cursor -= cursor % batch
        row = LedgerRange(trainer.generation, epoch, trainer.step, trainer.step + 10, cursor, cursor + 10 * batch)
        rate = 900.0 * len(trainer.group.members) + self._rng.random()
        metrics = (("loss", self._rng.random()), ("epoch_samples", float(EPOCH_SAMPLES)))
        samples = trainer.samples + 10 * batch
        return Progress(
            trainer.id, trainer.group.generation, row.step_end, epoch, samples, rate, ledger=(row,), metrics=metrics
        )

    def _tell(self, event: Event) -> Any:
        """Handle the event, and complete all commands that follow from it."""
        waiting: list[Event] = [event]
        while waiting:
            written = self.driver.post(waiting.pop(0))
            self.events += 1
            core = self.driver.core
            assert isinstance(core, Simulated)
            done = [self._completion(c) for c in core.given if not isinstance(c, Solve) or c.plan_id == core.plan_id]
            waiting += [event for event in done if event is not None]
        return written

    def _completion(self, command: Command) -> Event | None:
        step = self.driver.core.trainers[command.trainer].step if isinstance(command, FormGroup) else 0
        return completion(command, self._best, step)


def main() -> None:
    """Print and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.restart", description=__doc__)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3, help="starts, of which the median is told")
    parser.add_argument("--json", type=Path, help="write the results here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(Path(folder), arguments.days, arguments.rounds)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def measure(folder: Path, days: int, rounds: int) -> dict[str, Any]:
    """Of a pool in ``folder``."""
    site = folder / "bench.py"
    site.write_text(SITE)
    rundir = RunDir(folder / "run")
    started_s(rundir, site)
    course = asyncio.run(live(rundir, days))
    restarts = [started_s(rundir, site) for _ in range(rounds)]
    for path in segments.folder(rundir.journal).glob("*.snapshot"):
        path.write_bytes(b"damage")
    result = {
        "days": days,
        "restart_s": median(restarts),
        "restart_without_snapshot_s": started_s(rundir, site),
        "course": course,
    }
    print(json.dumps({name: value for name, value in result.items() if name != "course"}), flush=True)
    return result


async def live(rundir: RunDir, days: int) -> list[dict[str, float]]:
    """Continue for ``days``; after each: memory, bytes of the journal on disk and of the snapshot."""
    contents = read(rundir.journal)
    now_s = [contents.last_s]
    core = Simulated(fresh_core(contents).config)
    writer = JournalWriter.resume(rundir.journal, contents)
    driver = LiveDriver(core, writer, lambda: now_s[0])
    driver.adopt(restore(contents, lambda: core))
    performing = asyncio.create_task(driver.run(lambda *_: None))
    weeks = Weeks(driver, LaunchStore(rundir, contents.header.coordinator, None), now_s)
    course = []
    for day in range(1, days + 1):
        began_s = time.process_time()
        await weeks.day()
        course.append(
            {"day": day, **sizes(rundir), "us_per_event": 1e6 * (time.process_time() - began_s) / EVENTS_A_DAY}
        )
        print(json.dumps(course[-1]), flush=True)
    performing.cancel()
    writer.close()
    return course


def sizes(rundir: RunDir) -> dict[str, float]:
    """In MB."""
    files = list(segments.folder(rundir.journal).glob("*"))
    snapshot = sum(path.stat().st_size for path in files if path.suffix == ".snapshot")
    on_disk = sum(path.stat().st_size for path in files) + rundir.journal.stat().st_size - snapshot
    return {
        "rss_mb": psutil.Process().memory_info().rss / 1e6,
        "journal_mb": on_disk / 1e6,
        "snapshot_mb": snapshot / 1e6,
    }


def started_s(rundir: RunDir, site: Path) -> float:
    """Start the coordinator, wait until it answers, and kill it; the seconds until it answered."""
    command = [sys.executable, "-P", "-m", "pilot.service.daemon", "--run-dir", str(rundir.root), "--site", str(site)]
    began_s = time.monotonic()
    process = subprocess.Popen([*command, "--settings", '{"planner": "dp"}', "--pilots", "0"])
    try:
        while not answers(rundir):
            if process.poll() is not None or time.monotonic() - began_s > START_LIMIT_S:
                raise PilotError(f"the coordinator did not start; its log is {rundir.log}")
            time.sleep(0.02)
        return time.monotonic() - began_s
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()


def answers(rundir: RunDir) -> bool:
    """Whether anything answers at the address in the connection file."""
    try:
        PoolClient(rundir.connection, 5.0).trainers()
    except PilotError:
        return False
    return True


if __name__ == "__main__":
    main()
