"""Examines a worker that others wait for: is it stopped, making progress, or stuck?

Progress means CPU time of the worker or of anything that it started, or a wait for a disk; without any during a whole
examination it is stuck. This rule suits training scripts: one that sleeps longer than the site's timeout while others
wait for it is killed and restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import psutil

from pilot.agent.vocabulary import Watched
from pilot.host import proc

GLANCES = 8
"""One per tick; an examination takes about two seconds."""

LEAST_CPU_S = 0.015
"""The kernel counts in hundredths of a second; a single one may be due to rounding."""

_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
_AT_WORK = (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)


@dataclass(frozen=True, slots=True)
class Glance:
    """A training process (first) and its descendants at one time: their states and CPU times by pid."""

    states: tuple[str, ...]
    cpu_s: dict[int, float]


def glance(pid: int) -> Glance:
    """Look once; empty if the process has ended."""
    seen = list(_each(proc.tree(pid)))
    return Glance(tuple(state for _, state, _ in seen), {pid: cpu_s for pid, _, cpu_s in seen})


def _each(processes: Iterable[psutil.Process]) -> Iterator[tuple[int, str, float]]:
    for process in processes:
        try:
            with process.oneshot():
                times = process.cpu_times()
                yield process.pid, process.status(), times.user + times.system
        except psutil.Error:
            continue


def progress(glances: Sequence[Glance]) -> tuple[bool, str]:
    """Whether the process makes progress, and what was seen, in words."""
    if all(g.states[:1] and g.states[0] in _STOPPED for g in glances):
        return False, "it is stopped (SIGSTOP)"
    cpu_s = _cpu_s(glances)
    if cpu_s >= LEAST_CPU_S:
        return True, f"it is computing ({cpu_s:.2f} s of CPU time during the check)"
    if any(state in _AT_WORK for g in glances for state in g.states):
        return True, "it is waiting for a disk or a CPU"
    return False, "it makes no progress (no CPU time, no wait for a disk)"


def _cpu_s(glances: Sequence[Glance]) -> float:
    """CPU time of all processes together; those started meanwhile count from their start."""
    first, highest = glances[0].cpu_s, dict[int, float]()
    for g in glances:
        highest |= g.cpu_s
    return sum(max(0.0, cpu_s - first.get(pid, 0.0)) for pid, cpu_s in highest.items())


@dataclass(slots=True)
class StallProbe:
    """The current examinations, by trainer, with one glance per tick."""

    _glances: dict[str, list[dict[int, Glance]]] = field(default_factory=dict)

    def begin(self, trainer: str) -> None:
        """Start (or restart) watching the worker of ``trainer``."""
        self._glances[trainer] = []

    def tick(self, pids: Mapping[str, Sequence[int]]) -> list[Watched]:
        """Take one glance at each of ``pids``, the processes of running workers that have not answered; returns the
        results of completed examinations. A worker is judged by the worst of its processes.
        """
        out: list[Watched] = []
        for trainer, glances in list(self._glances.items()):
            if trainer not in pids:
                del self._glances[trainer]
                continue
            glances.append({pid: glance(pid) for pid in pids[trainer]})
            if len(glances) == GLANCES:
                del self._glances[trainer]
                watched = [pid for pid in glances[-1] if all(pid in earlier for earlier in glances)]
                seen = [progress([earlier[pid] for earlier in glances]) for pid in watched]
                out.append(Watched(trainer, *min(seen, default=(True, "it answers"))))
        return out


@dataclass(slots=True)
class StoppedProcesses:
    """A process that is stopped at every look is assumed to have been stopped in between."""

    _since_s: dict[int, float] = field(default_factory=dict)

    def look(self, now_s: float, stopped: Iterable[int]) -> dict[int, float]:
        """Those that are ``stopped`` now, by pid, with the time since they were first seen stopped."""
        self._since_s = {pid: self._since_s.get(pid, now_s) for pid in stopped}
        return {pid: now_s - since_s for pid, since_s in self._since_s.items()}
