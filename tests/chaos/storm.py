"""A seeded storm over a real pool: what can befall pilots and their processes, drawn at random, done for real.

The seed decides what happens and in what order; the machine decides how far the trainers are by then.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from tests.pools import Plain, Pool, is_worker

MOST_PILOTS = 6
FEWEST_PILOTS = 2
STOPPED_S = (0.2, 2.5)
"""A process is stopped for so long: below the site's time-out it is slow, which must not cost anything."""


@dataclass
class Storm:
    """The storm's dice, its record, and what it has stopped."""

    pool: Pool
    seed: int
    say: Callable[[str], None]
    began_s: float = field(default_factory=time.monotonic)
    _steps: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def gust(self) -> None:
        """One thing that befalls the pool, then what a keeper would do: pilots come back."""
        self._refill()
        blow = self.dice.choices(*zip(*self._blows(), strict=True))[0]
        blow()

    def _blows(self) -> Iterator[tuple[Callable[[], None], int]]:
        yield self._kill_tree, 3
        yield self._kill_agent, 2
        yield self._notice, 3
        yield self._kill_worker, 3
        yield self._kill_rank, 3
        yield self._stop_for_a_while, 3
        yield self._kill_several, 1
        yield self._kill_coordinator, 1
        yield self._calm, 3

    def _refill(self) -> None:
        """Pilots come, not always at once."""
        living = self._living()
        want = self.dice.randint(FEWEST_PILOTS, MOST_PILOTS)
        for _ in range(want - len(living)):
            self.pool.agent()
        if want > len(living):
            self._tell(f"{want - len(living)} pilots start")

    def _living(self) -> list[psutil.Process]:
        agents = [a for a in self.pool.agents if a.poll() is None]
        return [psutil.Process(a.pid) for a in agents]

    def _one(self) -> psutil.Process | None:
        living = self._living()
        return self.dice.choice(living) if living else None

    def _calm(self) -> None:
        time.sleep(self.dice.uniform(0.5, 2.0))

    def _kill_tree(self) -> None:
        agent = self._one()
        if agent is not None:
            self._tell(f"SIGKILL to the whole tree of agent {agent.pid}")
            _kill([agent, *_below(agent)])

    def _kill_agent(self) -> None:
        agent = self._one()
        if agent is not None:
            self._tell(f"SIGKILL to agent {agent.pid} alone")
            _kill([agent])

    def _notice(self) -> None:
        agent = self._one()
        if agent is not None:
            self._tell(f"SIGTERM to agent {agent.pid}")
            with suppress(psutil.NoSuchProcess):
                agent.terminate()

    def _kill_worker(self) -> None:
        self._kill_child("worker", is_worker)

    def _kill_rank(self) -> None:
        self._kill_child("rank process", lambda p: "pilot.comm.rank" in p.cmdline())

    def _kill_child(self, what: str, which: Callable[[psutil.Process], bool]) -> None:
        if not self._all_advanced():
            return
        found = [p for agent in self._living() for p in _below(agent) if _is(p, which)]
        if found:
            victim = self.dice.choice(found)
            self._tell(f"SIGKILL to {what} {victim.pid}")
            _kill([victim])

    def _all_advanced(self) -> bool:
        """Whether every trainer has stepped since this was last true: deaths without a step between are a failure."""
        steps = advanced(self.pool.status())
        if any(step <= self._steps.get(trainer, 0) for trainer, step in steps.items()):
            return False
        self._steps = steps
        return True

    def _stop_for_a_while(self) -> None:
        agent = self._one()
        processes = [agent, *_below(agent)] if agent is not None else []
        if processes:
            victim, seconds = self.dice.choice(processes), self.dice.uniform(*STOPPED_S)
            self._tell(f"SIGSTOP to {victim.pid} for {seconds:.1f} s")
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGSTOP)
                time.sleep(seconds)
                victim.send_signal(signal.SIGCONT)

    def _kill_several(self) -> None:
        living = self._living()
        victims = self.dice.sample(living, k=self.dice.randint(0, len(living)))
        self._tell(f"SIGKILL to the trees of {len(victims)} of {len(living)} pilots at once")
        _kill([p for agent in victims for p in [agent, *_below(agent)]])

    def _kill_coordinator(self) -> None:
        pid = self.pool.coordinator()
        if pid is not None:
            self._tell("SIGKILL to the coordinator, then pilot up again")
            _kill([psutil.Process(pid)])
            time.sleep(self.dice.uniform(0.0, 2.0))
            self.pool.up()

    def _tell(self, text: str) -> None:
        self.say(f"{time.monotonic() - self.began_s:6.1f} s  {text}")


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def _is(process: psutil.Process, which: Callable[[psutil.Process], bool]) -> bool:
    with suppress(psutil.Error):
        return which(process)
    return False


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def advanced(status: Plain) -> dict[str, int]:
    """Trainer → step."""
    return {t["trainer"]: t["step"] for t in status["trainers"]}
