"""The coordinator of a play: it does the acts, and what a coordinator and agents would do about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from subprocess import Popen

from pilot.core.commands import PauseGroup
from pilot.protocol import wire
from tests.between.drawn import AT_THE_END, LASTING, Act, Play
from tests.between.holds import Hold
from tests.between.stage import Fault, Host, Stage, cut, stopped

PROGRESS_S = 30.0
"""A trainer makes a step within this time, on a loaded machine too."""
LIMIT_S = 120.0
"""A play takes less."""
FORMING_S = 4.0
"""A group with a fault that has not formed by then does not form."""
QUIET_S = 4.0
"""A fault that nobody has reported by then is undone: nobody has waited for its node."""
HELD_S = 4.0
"""If the victim has not come to its phase by then, the act is over."""
MOMENT_S = 0.6
TICK_S = 0.01


@dataclass
class Group:
    """A generation, and since when it is ordered."""

    generation: int
    hosts: list[Host]
    ordered_s: float


class Conductor:
    """See the module. ``noted`` has what happened, ``slowest_s`` the longest time from a group's order to its start
    if no fault was there.
    """

    def __init__(self, stage: Stage, play: Play) -> None:
        self.stage, self.play = stage, play
        self.current: Group | None = None
        self.forming: Group | None = None
        self.fault: Fault | None = None
        self.noted: list[str] = []
        self.slowest_s = 0.0
        self._act = Act()
        self._want: list[Host] = []
        self._stalls_before, self._returns = 0, False
        self._pausing = False
        self._faulty_form = False
        self._broken_s: float | None = None
        self._progress = (0, 0)
        self._progress_s = self._began_s = time.monotonic()
        self._numbers = count(1)

    def run(self) -> None:
        """Play until the trainer has finished, and let all workers end."""
        hosts = self.stage.start_hosts(self.play.nodes + self.play.spares)
        self._spares = hosts[self.play.nodes :]
        self._want = hosts[: self.play.nodes]
        self._progress_s = self._began_s = time.monotonic()
        self._form()
        self._until(lambda: self.current is not None)
        for act in self.play.acts:
            if self._finished():
                self._note(f"finished before: {act}")
                continue
            if not act.soon:
                self._until(lambda: self._settled() or self._is_over())
            self._perform(act)
        self._until(lambda: self._settled() or self._is_over())
        self._open_gate()
        self._until(self._is_over)
        self._note("finished")
        self.stage.stop()

    def _open_gate(self) -> None:
        """Let the workers train as fast as they can."""
        (self.stage.folder / "gate").touch()

    def _note(self, text: str) -> None:
        self.noted.append(f"{time.monotonic() - self._began_s:6.2f} s  {text}")

    # --- acts

    def _perform(self, act: Act) -> None:
        self._act = act
        self._note(f"act: {act}")
        before = self.forming or self.current
        if act.order:
            getattr(self, f"_order_{act.order}")()
        group = self.forming or self.current or before
        hosts = [host for host in group.hosts if host.alive] if group is not None else []
        if not act.deed or not hosts:
            return
        if act.phase == AT_THE_END:
            self._open_gate()
        victim = hosts[act.victim % len(hosts)]
        number = act.victim // len(hosts) % self.play.per_node
        if not act.phase:
            self._until(lambda: False, act.delay_s)
            self._do(act.deed, victim, number, hosts)
            return
        hold = Hold(self.stage.folder, next(self._numbers), victim.workers[number].name, act.phase, act.skip)
        hold.arm()
        reached = self._until(lambda: hold.is_reached() or not victim.alive, HELD_S)
        if not reached or not victim.alive:
            hold.release()
            self._note("not reached")
        elif act.late:
            hold.release()
            time.sleep(act.delay_s)
            self._do(act.deed, victim, number, hosts)
        else:
            self._do(act.deed, victim, number, hosts)
            hold.release()

    def _do(self, deed: str, host: Host, number: int, hosts: Sequence[Host]) -> None:
        self._note(f"{deed}: {host.name}")
        worker, group = host.workers[number], self.forming or self.current
        if deed in LASTING:
            self._stalls_before, self._returns = len(self._stalls()), self._act.returns
        rank = self._rank_process(host, group)
        match deed:
            case "kill node":
                self.stage.kill_host(host)
            case "kill all":
                for one in hosts:
                    self.stage.kill_host(one)
            case "kill worker":
                self.stage.kill_worker(worker)
                self._until(lambda: not worker.alive)
            case "kill rank" if rank is not None:
                rank.kill()
                rank.wait()
            case "stop rank" if rank is not None:
                self.fault = stopped(host, rank.pid)
            case "stop worker":
                self.fault = stopped(host, worker.process.pid)
            case "stop for a moment":
                self._for_a_moment(stopped(host, worker.process.pid))
            case "cut for a moment":
                assert self.stage.lan is not None
                self._for_a_moment(cut(self.stage.lan, deed, host, hosts))
            case "cut" | "cut out" | "cut in" | "cut pair":
                assert self.stage.lan is not None
                self.fault = cut(self.stage.lan, deed, host, hosts)

    @staticmethod
    def _rank_process(host: Host, group: Group | None) -> Popen[bytes] | None:
        process = host.workers[0].ranks.get(group.generation) if group is not None else None
        return process if process is not None and process.poll() is None else None

    def _for_a_moment(self, fault: Fault) -> None:
        self._until(lambda: False, MOMENT_S)
        fault.undo()

    # --- what the coordinator orders

    def _order_join(self) -> None:
        if self._spares:
            self._want.append(self._spares.pop(0))
        self._form()

    def _order_leave(self) -> None:
        if len(self._want) > 1:
            self._spares.append(self._want.pop(0))
        self._form()

    def _order_again(self) -> None:
        self._want.append(self._want.pop(0))
        self._form()

    def _order_pause(self) -> None:
        if self.current is not None:
            self._pausing = True
            for host in self.current.hosts:
                for worker in host.workers:
                    worker.tell(PauseGroup("t1", self.current.generation, (), ""))

    def _form(self) -> None:
        """Order the next generation; those who train go on until it starts."""
        self._want = [host for host in self._want if host.alive]
        if not self._want:
            self._want, self._spares = self._spares[:1], self._spares[1:]
        if not self._want:
            self._want = self.stage.start_hosts(1)
        generation = self.stage.form_hosts(self._want, switch=self.current is not None)
        self.forming = Group(generation, list(self._want), time.monotonic())
        self._faulty_form = self.fault is not None
        self._note(f"order {generation}: {[host.name for host in self._want]}")

    def _dissolve(self, group: Group) -> None:
        reports = [report for node in self.stage.nodes for report in node.heard(wire.GroupBroken)]
        reasons = {report.reason for report in reports if report.generation == group.generation}
        self._note(f"dissolve {group.generation}{': ' * bool(reasons)}{'; '.join(sorted(reasons))}")
        self.stage.dissolve(group.generation)

    # --- what it hears

    def _until(self, done: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Play the coordinator until ``done``, or for ``limit_s``."""
        end_s = None if limit_s is None else time.monotonic() + limit_s
        while not done():
            now_s = time.monotonic()
            if end_s is not None and now_s >= end_s:
                return False
            self.stage._read(TICK_S)
            self._look(time.monotonic())
        return True

    def _settled(self) -> bool:
        changes = self._pausing or self.forming is not None or self._broken_s is not None or self.fault is not None
        return self.current is not None and not changes and not self._is_broken(self.current)

    def _is_over(self) -> bool:
        """Return whether the trainer has finished, and nothing else remains to be seen to."""
        return self._finished() and self.fault is None and not (self.current and self._is_broken(self.current))

    def _finished(self) -> bool:
        if self.current is None:
            return False
        leader = self.current.hosts[0].workers[0]
        return any(one.generation == self.current.generation for one in leader.heard(wire.TrainerFinished))

    def _look(self, now_s: float) -> None:
        self._see_start(now_s)
        self._see_pause()
        self._see_break(now_s)
        self._see_fault(now_s)
        self._see_progress(now_s)

    def _see_start(self, now_s: float) -> None:
        group = self.forming
        if group is None:
            return
        leader = group.hosts[0].workers[0]
        if any(one.generation == group.generation for one in leader.heard(wire.GroupFormed)):
            took_s = now_s - group.ordered_s
            if not self._faulty_form and self.fault is None:
                self.slowest_s = max(self.slowest_s, took_s)
            self._note(f"{group.generation} trains after {took_s:.2f} s")
            self.current, self.forming = group, None

    def _see_pause(self) -> None:
        if not self._pausing or self.current is None:
            return
        generation = self.current.generation
        workers = [worker for host in self.current.hosts for worker in host.workers]
        if all(any(one.generation == generation for one in worker.heard(wire.RankPaused)) for worker in workers):
            self._note("paused")
            self._pausing, self.current = False, None
            self._form()

    def _see_break(self, now_s: float) -> None:
        """Dissolve groups that a member has left, and order the next one."""
        groups = [group for group in (self.current, self.forming) if group is not None]
        if groups and not any(self._is_broken(group) for group in groups):
            self._broken_s = None
            return
        if self._broken_s is None:
            self._broken_s = now_s
        if now_s - self._broken_s < self._act.reaction_s:
            return
        self._broken_s = None
        for host in self.stage.hosts:
            if not host.alive:
                self.stage.kill_host(host)
        if self.current is not None and self._is_broken(self.current):
            self._dissolve(self.current)
            self.current, self._pausing = None, False
        if self.forming is not None and self._is_broken(self.forming):
            self._dissolve(self.forming)
            self.forming = None
        if self.fault is not None and self.fault.host.alive:
            self._note("broken by the fault")
            fault, self.fault = self.fault, None
            self._resolve(fault)
        elif self.forming is None:
            self._form()

    def _is_broken(self, group: Group) -> bool:
        """Return whether a member has died, its rank process has failed, or it reports that the group is broken."""
        reports = (report for node in self.stage.nodes for report in node.heard(wire.GroupBroken))
        if any(report.generation == group.generation for report in reports):
            return True
        return any(not host.alive or host.ended_rank(group.generation) for host in group.hosts)

    def _see_fault(self, now_s: float) -> None:
        """Resolve a fault that ranks report, that keeps a group from forming, or that does not matter."""
        fault = self.fault
        if fault is None:
            return
        if not fault.host.alive:
            self.fault = None
            return
        quiet = now_s - fault.began_s > QUIET_S
        slow = self.forming is not None and now_s - max(self.forming.ordered_s, fault.began_s) > FORMING_S
        if self._is_stalled() or slow:
            self._note("stalled" if not slow else "does not form")
            self.fault = None
            self._resolve(fault)
        elif quiet and (self.forming is None or self._finished()):
            self._note("nobody waits")
            self.fault = None
            fault.undo()

    def _is_stalled(self) -> bool:
        groups = {group.generation for group in (self.current, self.forming) if group is not None}
        return any(one.generation in groups for one in self._stalls()[self._stalls_before :])

    def _stalls(self) -> list[wire.RankStalled]:
        return [report for node in self.stage.nodes for report in node.heard(wire.RankStalled)]

    def _resolve(self, fault: Fault) -> None:
        """Kill the node, or undo the fault after the groups are dissolved."""
        if not self._returns:
            self.stage.kill_host(fault.host)
            return
        for group in (self.current, self.forming):
            if group is not None:
                self._dissolve(group)
        self.current = self.forming = None
        self._pausing = False
        fault.undo()
        self._form()

    def _see_progress(self, now_s: float) -> None:
        steps = max((report.step for report in self.stage.reports()), default=0)
        generation = self.current.generation if self.current is not None else 0
        progress = steps, generation
        if progress != self._progress or self._finished():
            self._progress, self._progress_s = progress, now_s
        late_s = now_s - self._progress_s
        assert late_s < PROGRESS_S, f"no progress in {late_s:.0f} s"
        assert now_s - self._began_s < LIMIT_S, f"it takes more than {LIMIT_S:.0f} s"
