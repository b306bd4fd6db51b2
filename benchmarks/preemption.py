"""What our pilots cost the job that preempts them, on a real Slurm (as root, see ``tests/slurm/lab.py``).

    python -m benchmarks.preemption --json preemption.json

A job of higher priority asks for two of six nodes. ``start_delay`` is the time from its submission to its first line,
on nodes that are

- idle: what Slurm itself needs,
- held by pilots that train: they hear of it, regroup without the two, and leave at once,
- held by jobs that sit out their grace (20 s) and are then killed (after KillWait, 10 s).

``notice_to_free`` is the time from an agent's notice to the moment at which its job is over.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from statistics import median

import click

from tests.slurm.lab import Lab, missing, running_lab, wait_for
from tests.slurm.pools import SlurmPool, high_priority, start_delay_s

NODES = 2
STUBBORN = "exec srun bash -c 'trap : USR1 TERM; while :; do sleep 0.1; done'"


@click.command()
@click.option("--repeats", default=5, show_default=True, help="Medians are of so many.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Where the result goes, as JSON.")
def main(repeats: int, output: Path | None) -> None:
    """Measure and print."""
    result = {"skipped": missing()} if missing() else measure(repeats)
    click.echo(json.dumps(result, indent=2))
    if output is not None:
        output.write_text(json.dumps(result, indent=2) + "\n")


def measure(repeats: int) -> dict[str, object]:
    """All three cases, each on a fresh lab."""
    idle = [delay for _ in range(repeats) for delay in on_idle_nodes()]
    stubborn = [delay for _ in range(repeats) for delay in on_stubborn_jobs()]
    pilots, freed = on_pilots(repeats)
    return {
        "start_delay_s": {"idle": idle, "pilots": pilots, "sat_out": stubborn},
        "start_delay_median_s": {"idle": median(idle), "pilots": median(pilots), "sat_out": median(stubborn)},
        "pilots_to_idle": median(pilots) / median(idle),
        "sat_out_to_pilots": median(stubborn) / median(pilots),
        "notice_to_free_s": freed,
        "notice_to_free_median_s": median(freed),
    }


def on_idle_nodes() -> Iterator[float]:
    """Nobody is there."""
    with _lab() as lab:
        yield _delay_s(lab)


def on_stubborn_jobs() -> Iterator[float]:
    """Jobs that ignore every signal."""
    with _lab() as lab:
        for _ in lab.nodes:
            lab.sbatch("-p", "preempt", "-N1", "--signal=USR1@60", "--wrap", STUBBORN)
        wait_for(lambda: lab.nodes_in("idle") == 0, "all nodes are taken", limit_s=30)
        yield _delay_s(lab)


def on_pilots(repeats: int) -> tuple[list[float], list[float]]:
    """Six pilots that train two trainers; after each preemption they come back. Delays, and notice to node free."""
    delays, freed = [], []
    with _lab() as lab, tempfile.TemporaryDirectory() as folder:
        pool = SlurmPool(Path(folder), lab=lab)
        try:
            pool.up_on(len(lab.nodes))
            trainers = [pool.submit_elastic(3, 10_000) for _ in range(2)]
            for _ in range(repeats):
                for name in trainers:
                    pool.trains(name, 3)
                delays.append(_delay_s(lab))
                pool.until_pilots(len(lab.nodes))
            assert all(pool.trainer(name).lost_steps == 0 for name in trainers)
            freed = notice_to_free_s(lab, (pool.run_dir / "coordinator.log").read_text())
        finally:
            pool.end()
    return delays, freed


def notice_to_free_s(lab: Lab, coordinator_log: str) -> list[float]:
    """Per preempted pilot: from the notice that the coordinator logged to the end of the job in slurmctld's log."""
    jobs = dict(re.findall(r"hub: (\S+) joined \(\S+ job (\d+)\)", coordinator_log))
    notices = {jobs[node]: _time_s(at, "%Y-%m-%d %H:%M:%S,%f") for at, node in _NOTICE.findall(coordinator_log)}
    slurm = (lab.folder / "slurmctld.log").read_text()
    ends = {job: _time_s(at, "%Y-%m-%dT%H:%M:%S.%f") for at, job in _DONE.findall(slurm)}
    return [round(ends[job] - noticed_s, 3) for job, noticed_s in notices.items() if job in ends]


_NOTICE = re.compile(r"^([\d-]+ [\d:,]+) INFO pilot\.live\.hub: (\S+) was given notice", re.M)
_DONE = re.compile(r"^\[([\dT:.-]+)\] _job_complete: JobId=(\d+) done", re.M)


def _time_s(text: str, form: str) -> float:
    """Unix time; both logs are in local time."""
    return datetime.strptime(text, form).timestamp()


def _delay_s(lab: Lab) -> float:
    job, note, submitted_s = high_priority(lab, f"-N{NODES}")
    delay_s = start_delay_s(note, submitted_s)
    wait_for(lambda: lab.state(job) == "COMPLETED", "the job has ended", limit_s=60)
    return round(delay_s, 3)


def _lab() -> AbstractContextManager[Lab]:
    return running_lab(Path(tempfile.mkdtemp(prefix="lab")))


if __name__ == "__main__":
    main()
