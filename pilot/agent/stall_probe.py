"""Examines a worker that others wait for: is it stopped, making progress, or stuck?

Progress means CPU time of the worker or of anything that it started, or a wait for a disk; without any during a whole
examination it is stuck. This rule suits training scripts: one that sleeps longer than the site's timeout while others
wait for it is killed and restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from pilot.agent.events_effects import Watched
from pilot.host import proc

SAMPLES = 8
"""One per tick; an examination takes about two seconds."""

LEAST_CPU_S = 0.015
"""The kernel counts in hundredths of a second; a single one may be due to rounding."""

_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_AT_WORK = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)


@dataclass(frozen=True, slots=True)
class Sample:
    """A training process (first) and its descendants at one time: their states and CPU times by pid."""

    states: tuple[str, ...]
    cpu_s: dict[int, float]


def sample(pid: int) -> Sample:
    """Take a sample; empty if the process has ended."""
    seen = list(_each(proc.tree(pid)))
    return Sample(tuple(state for _, state, _ in seen), {pid: cpu_s for pid, _, cpu_s in seen})


def _each(processes: Iterable[psutil.Process]) -> Iterator[tuple[int, str, float]]:
    for process in processes:
        try:
            with process.oneshot():
                times = process.cpu_times()
                yield process.pid, process.status(), times.user + times.system
        except psutil.Error:
            continue


def progress(samples: Sequence[Sample]) -> tuple[bool, str]:
    """Whether the process makes progress, and the evidence in words."""
    if all(s.states[:1] and s.states[0] in _STOPPED for s in samples):
        return False, "it is stopped (SIGSTOP)"
    cpu_s = _cpu_s(samples)
    if cpu_s >= LEAST_CPU_S:
        return True, f"it is computing ({cpu_s:.2f} s of CPU time during the check)"
    if any(state in _AT_WORK for s in samples for state in s.states):
        return True, "it is waiting for a disk or a CPU"
    return False, "it makes no progress (no CPU time, no wait for a disk)"


def _cpu_s(samples: Sequence[Sample]) -> float:
    """CPU time of all processes together; those started meanwhile count from their start."""
    first, highest = samples[0].cpu_s, dict[int, float]()
    for s in samples:
        highest |= s.cpu_s
    return sum(max(0.0, cpu_s - first.get(pid, 0.0)) for pid, cpu_s in highest.items())


@dataclass(slots=True)
class StallProbe:
    """The current examinations, by trainer, with one sample per tick."""

    _samples: dict[str, list[dict[int, Sample]]] = field(default_factory=dict)

    def begin(self, trainer: str) -> None:
        """Start (or restart) watching the worker of ``trainer``."""
        self._samples[trainer] = []

    def tick(self, pids: Mapping[str, Sequence[int]]) -> list[Watched]:
        """Take one sample of each of ``pids``, the processes of running workers that have not answered; returns the
        results of completed examinations. A worker is judged by the worst of its processes.
        """
        out: list[Watched] = []
        for trainer, samples in list(self._samples.items()):
            if trainer not in pids:
                del self._samples[trainer]
                continue
            samples.append({pid: sample(pid) for pid in pids[trainer]})
            if len(samples) == SAMPLES:
                del self._samples[trainer]
                watched = [pid for pid in samples[-1] if all(pid in earlier for earlier in samples)]
                seen = [progress([earlier[pid] for earlier in samples]) for pid in watched]
                out.append(Watched(trainer, *min(seen, default=(True, "it answers"))))
        return out


@dataclass(slots=True)
class StoppedProcesses:
    """Measures how long processes have been stopped. One that is at two updates, and has had no CPU time, is assumed to
    have been in between; others run now and then, as under cpulimit.
    """

    _since_s: dict[tuple[int, float], float] = field(default_factory=dict)

    def update(self, now_s: float, stopped: Mapping[int, float]) -> dict[int, float]:
        """Return, by pid, for how long the processes that are ``stopped`` now, with these CPU times, have been."""
        self._since_s = {key: self._since_s.get(key, now_s) for key in stopped.items()}
        return {pid: now_s - since_s for (pid, _), since_s in self._since_s.items()}
