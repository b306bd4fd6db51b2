"""A seeded storm over a real pool: random faults of pilots and their processes, injected for real.

The seed decides what happens and in what order; the machine decides how far the trainers are by then. Lasting faults (a
stopped process, a cut network, a full disk) are undone by a timer, so that other faults happen meanwhile.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from pilot.protocol.pool_status import PoolStatus
from tests.chaos.network import COORDINATOR
from tests.chaos.place import Place
from tests.chaos.record import Note
from tests.pools import is_worker

MOST_PILOTS = 6
FEWEST_PILOTS = 2
MOMENT_S = (0.2, 2.5)
"""Below the site's timeout: a delay of this length is slow, which must not cost anything."""

WHILE_S = (5.0, 9.0)
"""Above it: a peer that is silent for this long is lost, and is ignored when it comes back."""


@dataclass
class Storm:
    """The storm's random choices and its record."""

    place: Place
    seed: int
    note: Note
    began_s: float = field(default_factory=time.monotonic)
    without_s: float = 0.0
    """How long there was no coordinator: the supervisor waits longer and longer for one that is killed repeatedly."""
    _steps: dict[str, int] = field(default_factory=dict)
    _timers: list[threading.Timer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        self.pool = self.place.pool

    def gust(self) -> None:
        """One fault, then what a keeper would do: new pilots come."""
        self._refill()
        blow = self.dice.choices(*zip(*self._blows(), strict=True))[0]
        blow()

    def die_down(self) -> None:
        """Undo all lasting faults."""
        for timer in self._timers:
            timer.join()

    def _blows(self) -> Iterator[tuple[Callable[[], None], int]]:
        yield self._kill_tree, 3
        yield self._kill_agent, 2
        yield self._notice, 3
        yield self._kill_worker, 3
        yield self._kill_rank, 3
        yield self._stop_for_a_moment, 3
        yield self._stop_for_a_while, 1
        yield self._slow_down, 2
        yield self._kill_several, 1
        yield self._kill_coordinator, 1
        yield self._stop_coordinator, 1
        yield self._delay, 2
        yield self._drop, 1
        yield self._calm, 3
        if self.place.lan is not None:
            yield self._cut, 3
            yield self._lose, 2
        if self.place.disks:
            yield self._fill_disk, 2

    def _refill(self) -> None:
        """New pilots come, not always at once."""
        living = self._living()
        want = self.dice.randint(FEWEST_PILOTS, MOST_PILOTS)
        for _ in range(want - len(living)):
            self.place.agent(through_relay=self.dice.random() < 0.5)
        if want > len(living):
            self._note(f"{want - len(living)} pilots start")

    def _living(self) -> list[psutil.Process]:
        return [psutil.Process(agent.pid) for agent in self.place.living()]

    def _one(self) -> psutil.Process | None:
        living = self._living()
        return self.dice.choice(living) if living else None

    def _calm(self) -> None:
        time.sleep(self.dice.uniform(0.5, 2.0))

    # --- what is killed ---------------------------------------------------------------------------------------------

    def _kill_tree(self) -> None:
        agent = self._one()
        if agent is not None:
            self._note(f"SIGKILL to the tree of agent {agent.pid}")
            _kill([agent, *_below(agent)])

    def _kill_agent(self) -> None:
        agent = self._one()
        if agent is not None:
            self._note(f"SIGKILL to agent {agent.pid} alone")
            _kill([agent])

    def _notice(self) -> None:
        agent = self._one()
        if agent is not None:
            self._note(f"SIGTERM to agent {agent.pid}")
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
            self._note(f"SIGKILL to {what} {victim.pid}")
            _kill([victim])

    def _all_advanced(self) -> bool:
        """Whether every trainer has stepped since this was last true: deaths without a step in between count as a
        failure.
        """
        steps = advanced(self.pool.status())
        if any(step <= self._steps.get(trainer, 0) for trainer, step in steps.items()):
            return False
        self._steps = steps
        return True

    def _kill_several(self) -> None:
        living = self._living()
        victims = self.dice.sample(living, k=self.dice.randint(0, len(living)))
        self._note(f"SIGKILL to the trees of {len(victims)} of {len(living)} pilots at once")
        _kill([p for agent in victims for p in [agent, *_below(agent)]])

    def _kill_coordinator(self) -> None:
        pid = self.pool.coordinator()
        if pid is not None:
            self._note("SIGKILL to the coordinator, which its supervisor starts again")
            killed_s = time.monotonic()
            _kill([psutil.Process(pid)])
            self.pool.back_from(pid)
            self.without_s += time.monotonic() - killed_s

    # --- lasting faults --------------------------------------------------------------------------------------------

    def _stop_for_a_moment(self) -> None:
        agent = self._one()
        processes = [agent, *_below(agent)] if agent is not None else []
        if processes:
            self._stop(self.dice.choice(processes), self.dice.uniform(*MOMENT_S))

    def _stop_for_a_while(self) -> None:
        """Stop an agent or a worker for so long that it counts as dead."""
        agent = self._one()
        if agent is not None and self._all_advanced():
            workers = [p for p in _below(agent) if is_worker(p)]
            self._stop(self.dice.choice([agent, *workers]), self.dice.uniform(*WHILE_S))

    def _stop_coordinator(self) -> None:
        """Stop the coordinator: no peer counts as silent meanwhile, and requests wait."""
        pid = self.pool.coordinator()
        if pid is not None:
            self._stop(psutil.Process(pid), self.dice.uniform(0.2, WHILE_S[1]))

    def _stop(self, victim: psutil.Process, seconds: float) -> None:
        self._note(f"SIGSTOP to {victim.pid} for {seconds:.1f} s")
        _signal(victim, signal.SIGSTOP)
        self._later(seconds, lambda: _signal(victim, signal.SIGCONT))

    def _slow_down(self) -> None:
        """Slow down a worker or rank process by stopping it part of the time."""
        agent = self._one()
        found = [p for p in _below(agent) if is_worker(p) or "pilot.comm.rank" in _command(p)] if agent else []
        if found:
            victim, times = self.dice.choice(found), self.dice.randint(5, 30)
            self._note(f"{victim.pid} runs a third of the time for {0.3 * times:.1f} s")
            for number in range(times):
                self._later(0.3 * number, lambda: _signal(victim, signal.SIGSTOP))
                self._later(0.3 * number + 0.2, lambda: _signal(victim, signal.SIGCONT))

    def _delay(self) -> None:
        delay_s, seconds = self.dice.uniform(0.05, 1.5), self.dice.uniform(*MOMENT_S)
        self._note(f"messages through the relay take {delay_s:.2f} s longer for {seconds:.1f} s")
        self.place.relay.delay_s = delay_s
        self._later(seconds, lambda: setattr(self.place.relay, "delay_s", 0.0))

    def _drop(self) -> None:
        self._note("connections through the relay are dropped, with what is on its way")
        self.place.relay.drop()

    def _cut(self) -> None:
        lan, agents = self.place.lan, self.place.living()
        if lan is None or not agents:
            return
        agent = self.dice.choice(agents)
        seconds = self.dice.uniform(*self.dice.choice([MOMENT_S, WHILE_S]))
        number = self.place.ports[agent.pid]
        self._note(f"the network of agent {agent.pid} is cut for {seconds:.1f} s")
        lan.cut(number)
        self._later(seconds, lambda: lan.mend(number))

    def _lose(self) -> None:
        """What one pilot sends to another or to the coordinator, or the coordinator to it, is lost."""
        lan, agents = self.place.lan, self.place.living()
        if lan is None or not agents:
            return
        numbers = [COORDINATOR, *(self.place.ports[agent.pid] for agent in agents)]
        sender, receiver = self.dice.sample(numbers, 2)
        seconds = self.dice.uniform(*self.dice.choice([MOMENT_S, WHILE_S]))
        self._note(f"what port {sender} sends to port {receiver} is lost for {seconds:.1f} s")
        lan.lose(sender, receiver)
        self._later(seconds, lambda: lan.find(sender, receiver))

    def _fill_disk(self) -> None:
        disk, seconds = self.dice.choice(self.place.disks), self.dice.uniform(*MOMENT_S)
        self._note(f"the disk of {disk.folder.parent.name} is full for {seconds:.1f} s")
        disk.fill()
        self._later(seconds, disk.empty)

    def _later(self, seconds: float, undo: Callable[[], None]) -> None:
        self._timers = [timer for timer in self._timers if timer.is_alive()]
        self._timers.append(threading.Timer(seconds, undo))
        self._timers[-1].start()

    def _note(self, text: str) -> None:
        self.note(f"{time.monotonic() - self.began_s:6.1f} s  {text}")


def _below(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(process.children(recursive=True))
    return []


def _is(process: psutil.Process, which: Callable[[psutil.Process], bool]) -> bool:
    with suppress(psutil.Error):
        return which(process)
    return False


def _command(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def advanced(status: PoolStatus) -> dict[str, int]:
    """Trainer → step, for trainers that have not ended."""
    return {t.trainer: t.step for t in status.trainers if t.phase not in ("finished", "cancelled")}
