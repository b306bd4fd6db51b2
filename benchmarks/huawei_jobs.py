"""The jobs of Huawei's experiments: a file's, sets resampled from them, and the short ones of §5.3.

A file has the columns job, submit_s and duration_s. A job's duration is its work: its run time on one node.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean

from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.research.sim.knowledge import huawei_curve
from pilot.research.traces.workload import WorkloadRow

MEAN_S = 235.1 * 60
JOBS, SPAN_S = 439, 49.7 * 3600
"""For random jobs, when no file is given."""
SHORT_JOBS, SHORT_MOST_S = 805, 300.0
"""§5.3: 1,252 jobs minus 447, all shorter than five minutes. By the paper's means (84.3 min for all, 232.6 for the long
ones) theirs is 1.95 minutes."""


@dataclass(frozen=True, slots=True)
class Job:
    """``work_s``: on one node."""

    submit_s: float
    work_s: float


def read(path: Path) -> list[Job]:
    """The jobs of a file, in submission order."""
    with path.open() as file:
        made = [Job(float(row["submit_s"]), float(row["duration_s"])) for row in csv.DictReader(file)]
    return sorted(made, key=lambda job: job.submit_s)


def drawn(seed: int) -> list[Job]:
    """439 jobs in 49.7 h, 235 minutes on average and at least ten; few are long."""
    rng = random.Random(seed)
    work = _with_mean([600 + rng.lognormvariate(8.4, 1.5) for _ in range(JOBS)], MEAN_S)
    return [Job(submit_s, w) for submit_s, w in zip(sorted(rng.uniform(0, SPAN_S) for _ in work), work, strict=True)]


def resampled(jobs: Sequence[Job], seed: int) -> list[Job]:
    """As many similar jobs: interarrival times and work, each drawn independently from theirs with replacement.

    Span and mean work equal those of ``jobs``, so that the load is the same.
    """
    rng = random.Random(seed)
    gaps = [later.submit_s - job.submit_s for job, later in pairwise(jobs)]
    span_s = jobs[-1].submit_s - jobs[0].submit_s
    some = _with_mean([rng.choice(gaps) for _ in gaps], span_s / len(gaps))
    work = _with_mean([rng.choice(jobs).work_s for _ in jobs], fmean(job.work_s for job in jobs))
    return [Job(submit_s, w) for submit_s, w in zip(accumulate(some, initial=0.0), work, strict=True)]


def with_short(jobs: Sequence[Job], seed: int) -> list[Job]:
    """With 805 jobs under five minutes (§5.3): even arrivals, truncated exponential work."""
    rng = random.Random(seed)
    first_s, last_s = jobs[0].submit_s, jobs[-1].submit_s
    short = [Job(rng.uniform(first_s, last_s), _short(rng)) for _ in range(SHORT_JOBS)]
    return sorted([*jobs, *short], key=lambda job: job.submit_s)


def _short(rng: random.Random) -> float:
    """Exponential, redrawn until below five minutes, so that the mean is 1.95 minutes."""
    return next(w for w in iter(lambda: rng.expovariate(1 / 195.0), None) if 5.0 <= w < SHORT_MOST_S)


def _with_mean(values: Sequence[float], mean: float) -> list[float]:
    factor = mean / fmean(values)
    return [value * factor for value in values]


def rows(jobs: Sequence[Job], sizes: Sequence[int]) -> list[WorkloadRow]:
    """As trainers that run on ``sizes`` at the published speeds; rescaling is free (§5.1)."""
    curve = huawei_curve(1.0, sizes)
    made = []
    for number, job in enumerate(jobs):
        spec = TrainerSpec(
            TrainerId(f"j{number:04}"),
            max_nodes=sizes[-1],
            curve=curve,
            fixed_curve=True,
            sizes=tuple(sizes),
            samples=job.work_s,
            rescale_up_s=0.0,
            rescale_down_s=0.0,
        )
        made.append(WorkloadRow(spec, job.submit_s, job.work_s, 0))
    return made
