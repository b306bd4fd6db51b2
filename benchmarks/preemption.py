"""How long our pilots delay the job that preempts them, on a real Slurm and a real OpenPBS.

As root, see ``tests/slurm/lab.py`` and ``tests/pbs/lab.py``; what is not installed is left out.

    python -m benchmarks.preemption --json preemption.json
    python -m benchmarks.preemption --only "PBS, deleted" --repeats 9

A job of higher priority asks for two of Slurm's six nodes, or for one of PBS's three. ``start`` is the time from its
submission to its first line, ``left`` the time from a pilot's notice to its departure. The nodes are

- idle: the scheduler's own delay,
- held by pilots that train: they get the notice, regroup without the leaving ones, and leave at once,
- held by jobs that sit out their grace (20 s) and are then killed (after KillWait, 10 s),
- on PBS, held by pilots below PBS's ordinary login shell and not below ours (``PBS_SHELL`` in ``launchers/steps.py``).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median

import click

from tests.pbs import lab as pbs_lab
from tests.pbs import pools as pbs_pools
from tests.pools import Pool
from tests.slurm import lab as slurm_lab
from tests.slurm import pools as slurm_pools
from tests.slurm.lab import wait_for
from tests.slurm.pools import start_delay_s

SLURM_NODES = 2
EPOCHS = 10_000
STUBBORN = "exec srun bash -c 'trap : USR1 TERM; while :; do sleep 0.1; done'"
PLAIN_SHELL = '#!/bin/sh\nexec /bin/bash -l "$@"\n'


@dataclass(slots=True)
class Measured:
    """Seconds: one ``start_s`` per high-priority job, one ``left_s`` per pilot that had to leave."""

    start_s: list[float] = field(default_factory=list)
    left_s: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """All numbers, and their medians."""
        medians = {
            f"{name}_median": _median(values) for name, values in (("start_s", self.start_s), ("left_s", self.left_s))
        }
        return {"start_s": self.start_s, "left_s": self.left_s, **medians}


# --- Slurm


def slurm_idle(repeats: int) -> Measured:
    """Idle nodes."""
    with _slurm() as lab:
        return Measured([_slurm_start_s(lab) for _ in range(repeats)])


def slurm_stubborn(repeats: int) -> Measured:
    """Held by jobs that ignore every signal."""
    return Measured([_stubborn_start_s() for _ in range(repeats)])


def _stubborn_start_s() -> float:
    with _slurm() as lab:
        for _ in lab.nodes:
            lab.sbatch("-p", "preempt", "-N1", "--signal=USR1@60", "--wrap", STUBBORN)
        wait_for(lambda: lab.nodes_in("idle") == 0, "all nodes are taken", limit_s=30)
        return _slurm_start_s(lab)


def slurm_pilots(repeats: int) -> Measured:
    """Six pilots with two trainers; they come back after each preemption."""
    with _slurm() as lab, tempfile.TemporaryDirectory() as folder:
        pool = slurm_pools.SlurmPool(Path(folder), lab=lab)
        try:
            pool.up_on(len(lab.nodes))
            trainers = {pool.submit_elastic(3, EPOCHS): 3 for _ in range(2)}
            return _preempted(pool, trainers, lambda: _slurm_start_s(lab), repeats)
        finally:
            pool.end()


def _slurm_start_s(lab: slurm_lab.Lab) -> float:
    job, note, submitted_s = slurm_pools.high_priority(lab, f"-N{SLURM_NODES}")
    start_s = start_delay_s(note, submitted_s)
    wait_for(lambda: lab.state(job) == "COMPLETED", "the job has ended", limit_s=60)
    return round(start_s, 3)


def _slurm() -> AbstractContextManager[slurm_lab.Lab]:
    return slurm_lab.running_lab(slurm_lab.new_folder())


# --- PBS


def pbs_idle(repeats: int) -> Measured:
    """Idle nodes."""
    with _pbs() as lab:
        return Measured([_pbs_start_s(lab) for _ in range(repeats)])


def pbs_pilots(order: str, *, plain_shell: bool) -> Callable[[int], Measured]:
    """Three pilots with one trainer; ``order`` is PBS's ``preempt_order``."""

    def measure(repeats: int) -> Measured:
        with _pbs() as lab:
            lab.qmgr(f'set sched preempt_order="{order}"')
            pool = pbs_pools.PbsPool(pbs_pools.own_folder(lab), lab=lab)
            try:
                pool.up_on(None, requeue=order == "R")  # no pilot before there is a trainer
                if plain_shell:
                    (pool.run_dir / "pilots" / "shell").write_text(PLAIN_SHELL)
                trainers = {pool.submit_elastic(3, EPOCHS): 3}
                pool.until_pilots(3)
                return _preempted(pool, trainers, lambda: _pbs_start_s(lab), repeats)
            finally:
                pool.end()

    return measure


def _pbs_start_s(lab: pbs_lab.Lab) -> float:
    job, note, submitted_s = pbs_pools.high_priority(lab)
    start_s = start_delay_s(note, submitted_s)
    wait_for(lambda: job not in lab.queued(), "the job has ended", limit_s=60)
    return round(start_s, 3)


def _pbs() -> AbstractContextManager[pbs_lab.Lab]:
    return pbs_lab.running_lab(Path(tempfile.mkdtemp(prefix="pbs")))


# --- both


def _preempted(pool: Pool, trainers: dict[str, int], start_s: Callable[[], float], repeats: int) -> Measured:
    """Preempt pilots of a pool again and again; no step may be lost."""
    found = Measured()
    for _ in range(repeats):
        for name, nodes in trainers.items():
            pool.trains(name, nodes)
        found.start_s.append(start_s())
    pool.until_pilots(sum(trainers.values()))
    assert all(pool.trainer(name).lost_steps == 0 for name in trainers)
    found.left_s = notice_to_left_s((pool.run_dir / "coordinator.log").read_text())
    assert found.left_s, "the coordinator's log tells of no pilot that was given notice and left"
    return found


def notice_to_left_s(coordinator_log: str) -> list[float]:
    """For each pilot that got a notice and left: how long that took."""
    noticed = {node: _time_s(at) for at, node in _NOTICE.findall(coordinator_log)}
    left = {node: _time_s(at) for at, node in _LEFT.findall(coordinator_log)}
    return [round(left[node] - noticed_s, 3) for node, noticed_s in noticed.items() if node in left]


_NOTICE = re.compile(r"^([\d-]+ [\d:,]+) INFO pilot\.service\.service: (\S+) was given notice", re.MULTILINE)
_LEFT = re.compile(r"^([\d-]+ [\d:,]+) INFO pilot\.service\.service: (\S+) is gone: left", re.MULTILINE)


def _time_s(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def _median(values: list[float]) -> float | None:
    return round(median(values), 3) if values else None


SLURM: dict[str, Callable[[int], Measured]] = {
    "Slurm, idle": slurm_idle,
    "Slurm, pilots": slurm_pilots,
    "Slurm, sat out": slurm_stubborn,
}
PBS: dict[str, Callable[[int], Measured]] = {
    "PBS, idle": pbs_idle,
    "PBS, deleted": pbs_pilots("D", plain_shell=False),
    "PBS, requeued": pbs_pilots("R", plain_shell=False),
    "PBS, deleted, plain shell": pbs_pilots("D", plain_shell=True),
    "PBS, requeued, plain shell": pbs_pilots("R", plain_shell=True),
}


@click.command()
@click.option("--repeats", default=5, show_default=True, help="Medians are of so many.")
@click.option(
    "--only", multiple=True, type=click.Choice([*SLURM, *PBS]), help="These cases; else all that are possible."
)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Where the result goes, as JSON.")
def main(repeats: int, only: tuple[str, ...], output: Path | None) -> None:
    """Measure, and print a table."""
    result: dict[str, object] = {}
    click.echo("| the nodes are | start, median (range), s | notice to left, median, s |\n|---|---|---|")
    for cases, missing in ((SLURM, slurm_lab.missing()), (PBS, pbs_lab.missing())):
        for name, measure in cases.items():
            if only and name not in only:
                continue
            if missing:
                result[name] = {"skipped": missing}
                continue
            found = measure(repeats)
            result[name] = found.as_json()
            span = f"{min(found.start_s)} to {max(found.start_s)}"
            click.echo(f"| {name} | {_median(found.start_s)} ({span}) | {_median(found.left_s) or ''} |")
    if output is not None:
        output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
