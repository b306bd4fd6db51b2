"""The coordinator's main loop: agents' messages become events of the core, time passes, losses are noticed.

It only ever waits for time and messages: the disk has its own thread, the solver its own process, and effects are sent
by a task that waits for the disk.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field

from pilot.core.commands import ReleaseNode
from pilot.core.events import Event, GroupBroken
from pilot.core.ids import NodeId, TrainerId
from pilot.host.printable import printable
from pilot.protocol import wire
from pilot.protocol.node_names import node_of
from pilot.provisioning.keepers import Keepers
from pilot.service.agents import inbound, node_remarks
from pilot.service.agents.admission import Admission
from pilot.service.agents.coalesce import Coalescer
from pilot.service.agents.effects import Effects
from pilot.service.agents.inbound import Inbound
from pilot.service.agents.intake import Intake, in_lines
from pilot.service.agents.node_remarks import VersionsSeen
from pilot.service.agents.node_types import NodeTypes
from pilot.service.agents.rejoin import Rejoined
from pilot.service.agents.roster import Pilot, Roster
from pilot.service.agents.server import Peer, Server
from pilot.service.agents.speeds import SpeedMeter
from pilot.service.durability.live_driver import LiveDriver
from pilot.service.planning.sampler_process import SamplerProcess
from pilot.service.planning.solver_process import SolverProcess
from pilot.service.requests.api import Api
from pilot.service.requests.launch_store import LaunchStore
from pilot.site.site import Site

log = logging.getLogger(__name__)

TICK_S = 0.5
"""Resolution of commands' timeouts."""

SETTLE_S = 2.0
"""Within this time an agent that came back has sent its queued reports."""

ELSEWHERE_MAX = 100
"""Hosts outside of the pool that are reported because their pilots were refused, each once."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(slots=True, eq=False)
class Service:
    """Connects the server, the driver and the effects."""

    site: Site
    pool: str
    admission: Admission
    _: KW_ONLY
    server: Server
    driver: LiveDriver
    roster: Roster
    launches: LaunchStore
    solver: SolverProcess
    sampler: SamplerProcess
    requests: Api
    jobs: Keepers
    _coalescer: Coalescer = field(default_factory=Coalescer)
    _intake: Intake = field(init=False)
    _inbound: Inbound = field(init=False)
    _effects: Effects = field(init=False)
    _stir: asyncio.Event = field(default_factory=asyncio.Event)
    _ticked_s: float = -TICK_S
    _elsewhere: set[str] = field(default_factory=set)
    _trouble: str = ""
    _versions_seen: VersionsSeen = field(default_factory=VersionsSeen)
    _types: NodeTypes = field(init=False)
    _speeds: SpeedMeter = field(init=False)

    def __post_init__(self) -> None:
        driver, parts = self.driver, (self.launches, self.solver, self.sampler)
        self._intake = Intake(driver.core, driver.pending)
        self._types, self._speeds = NodeTypes(self.site), SpeedMeter(driver.core)
        self._inbound = Inbound(driver, self.roster, self.send)
        self._effects = Effects(self.site, driver, *parts, self.send, self._inbound.rendezvous.have_met)

    async def run(self) -> None:
        """Serve until cancelled, or until a fatal failure (the journal, an invariant)."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.driver.run(self._effects.perform))
            tasks.create_task(self._keep_time())
            tasks.create_task(self.server.run(self, self.admission.grant))

    def send(self, node: NodeId, message: wire.Sent, event: int = 0) -> None:
        """Send to a node a message that entry ``event`` of the journal caused. If it does not arrive, it is repeated
        when the node comes back, or lost with the node."""
        pilot = self.roster.pilots.get(node)
        if pilot is None or not pilot.here:
            return
        assert pilot.link is not None
        if isinstance(message, ReleaseNode) and not pilot.leaving:
            pilot.leaving = message.reason
        if not self.server.send(pilot.link, message, event):
            self.closed(pilot.link)

    def lose(self, node: NodeId, why: str) -> None:
        """``node`` is lost: its pilot must leave if it is still running; the core gets the loss together with other
        current changes."""
        if node not in self.roster.pilots:
            return
        pilot = self.roster.pilots[node]
        log.log(logging.INFO if pilot.leaving else logging.WARNING, "%s is gone: %s", node, why)
        self.send(node, wire.Forgotten(f"it counts as lost: {why}"))
        if pilot.link is not None:
            self.server.drop(pilot.link)
        if pilot.leaving and pilot.away_s is not None and pilot.job:
            self.jobs.each(lambda keeper: keeper.left(pilot.job or ""))
        self.roster.remove(node, why)
        self._coalescer.lost(self.driver.clock(), node, why)
        self._stir.set()

    def notice(self, pilot: Pilot, cause: str, grace_s: float) -> None:
        """``pilot`` got a notice, by a signal to its agent or from the scheduler; the first one counts."""
        if pilot.leaving:
            return
        now_s = self.driver.clock()
        pilot.leaving = cause
        log.info("%s was given notice: %s, %g s", pilot.node, cause, grace_s)
        self._coalescer.noticed(now_s, pilot.node, now_s + grace_s, cause)
        if pilot.hello is not None:
            job = pilot.hello.job
            self.jobs.each(lambda keeper: keeper.noticed(job, cause))
        self._stir.set()

    def ends(self, node: NodeId, end_s: float | None) -> None:
        """``node`` will have left by ``end_s`` (Unix time); None: that is no longer known."""
        self._coalescer.ends(self.driver.clock(), node, self._on_our_clock(end_s))
        self._stir.set()

    # --- time -----------------------------------------------------------------------------------------------------

    async def _keep_time(self) -> None:
        due_s = self.driver.clock()
        while True:
            now_s = self.driver.clock()
            self.roster.excuse(now_s, now_s - due_s)
            self._pass_time(now_s)
            due_s = min(now_s + TICK_S, self.roster.due_s(now_s), self._coalescer.due_s or now_s + TICK_S)
            try:
                async with asyncio.timeout(max(0.0, due_s - self.driver.clock())):
                    await self._stir.wait()
            except TimeoutError:
                pass
            self._stir.clear()

    def _pass_time(self, now_s: float) -> None:
        for node, why in self.roster.lost(now_s, self._holders):
            self.lose(node, why)
        if now_s >= self._ticked_s + TICK_S:
            self._ticked_s = now_s
            for line in self._intake.warnings(now_s):
                self.driver.remark(text=line)
            if self._decides(now_s):
                self._end_waits(now_s)
        if self._coalescer.due_s is not None and self.driver.clock() >= self._coalescer.due_s:
            self._post(self._coalescer.take(now_s, self._undecided))

    def _decides(self, now_s: float) -> bool:
        """Whether decisions take effect. While they do not, nothing times out."""
        trouble = self.driver.trouble
        if trouble and not self._trouble:
            log.error("%s; decisions take effect once there is space again", trouble)
        elif self._trouble and not trouble:
            self.driver.remark(text=f"decisions had to wait for disk space: {self._trouble}")
            self.driver.pending.restart(now_s)
            for trainer in self._inbound.gaps:
                gap = "its progress reports could not be written: its ledger has a gap"
                self._inbound.remark(trainer, gap, lasting="yes")
            self._inbound.gaps.clear()
        self._trouble = trouble
        return not trouble

    def _end_waits(self, now_s: float) -> None:
        """Handle everything that has timed out."""
        late = self._effects.overdue(now_s)
        for node, why in late.hopeless:
            self.lose(node, why)
        for stop in late.stops:
            self._effects.perform(stop)
        inbound = self._inbound
        waited = (*late.events, *inbound.stall_checks.overdue(now_s), *inbound.silence.overdue(now_s))
        self._post([*map(self._inbound.unreached.explained, waited), *self.driver.core.due(now_s)])

    def _holders(self, node: NodeId) -> Iterable[NodeId]:
        """The nodes that hold the same state as ``node``."""
        occupant = self.driver.core.pool.occupant.get(node)
        trainer = self.driver.core.trainers[occupant] if occupant is not None else None
        return trainer.holders() if trainer is not None and trainer.holds_state(node) else ()

    def _undecided(self, event: GroupBroken) -> bool:
        group = self.driver.pending.groups.get((event.trainer, event.generation))
        return group is not None and any(self.roster.undecided(node) for node in group.members)

    def _post(self, events: Iterable[Event]) -> None:
        for event in events:
            self.driver.post(event)

    # --- connections ----------------------------------------------------------------------------------------------

    def closed(self, link: Peer) -> None:
        """A connection closed: its pilot is lost unless it reconnects at once."""
        pilot = self.roster.closed(self.driver.clock(), link)
        if pilot is not None:
            log.info("the connection of %s closed", pilot.node)
            self._stir.set()

    def received(self, link: Peer, message: wire.FromAgent | wire.Request) -> None:
        """Check the sender, then act on the message."""
        match message:
            case wire.Request():
                self.requests.answer(link, message)
            case wire.Hello():
                self._greeted(link, message)
            case _:
                pilot = self.roster.at(link)
                if pilot is None:
                    self.server.refuse(link, f"it sent {type(message).__name__} before Hello")
                    return
                now_s = self.driver.clock()
                self.roster.heard(now_s, pilot)
                if (accepted := self._intake.accepted(now_s, pilot.node, pilot.quota, message)) is not None:
                    self._act_on(link, pilot, accepted)

    def _act_on(self, link: Peer, pilot: Pilot, message: wire.FromAgent) -> None:
        match message:
            case wire.Heartbeat():
                self.send(pilot.node, wire.HeartbeatSeen(message.sent_s))
                for trainer, times in message.step_times.items():
                    if self._intake.runs(pilot.node, trainer):
                        pilot.timed = trainer, times
                        self._post(self._speeds.measured(self.driver.clock(), pilot.node, TrainerId(trainer), times))
            case wire.Noticed():
                self.notice(pilot, message.cause, inbound.grace_s(message))
            case _:
                events = self._inbound.events_of(pilot.node, message)
                if events is None:
                    self.server.refuse(link, f"an agent does not send {type(message).__name__}")
                for event in events or ():
                    self._reported(event)

    def _reported(self, event: Event) -> None:
        """A broken group waits for the fate of its members."""
        if isinstance(event, GroupBroken):
            self._coalescer.broken(self.driver.clock(), event)
            self._stir.set()
        else:
            self.driver.post(event)

    # --- pilots ---------------------------------------------------------------------------------------------------

    def _greeted(self, link: Peer, hello: wire.Hello) -> None:
        node = node_of(hello.host, hello.pilot)
        if reason := self._objection(link, node, hello):
            self.server.refuse(link, reason)
            is_new = hello.host not in self._elsewhere and len(self._elsewhere) < ELSEWHERE_MAX
            if reason == self.admission.elsewhere(hello) and is_new:
                self._elsewhere.add(hello.host)  # the scheduler may start many there
                self.driver.remark(text=f"a pilot was refused: {reason}")
            return
        if node in self.roster.gone:
            why = f"this pilot counts as lost: {self.roster.gone[node]}"
            self.server.send(link, wire.Forgotten(why))
            self.server.drop(link, f"{node}: {why}")
            return
        now_s, known = self.driver.clock(), self.roster.pilots.get(node)
        if not (known.quota.allows(now_s, hello) if known is not None else link.grant.may_join(now_s)):
            self.server.drop(link, f"{node} comes too often")
        elif self.server.keep(link, known.link if known is not None else None):
            self._enter(link, node, in_lines(hello))

    def _objection(self, peer: Peer, node: NodeId, hello: wire.Hello) -> str:
        if not (_NAME.fullmatch(hello.host) and _NAME.fullmatch(hello.pilot)):
            return f"not a name for a node: {node[:80]!r}"
        if self.driver.core.draining and node not in self.roster.pilots:
            return "the pool is being shut down"
        if (here := self.roster.at(peer)) is not None and here.node != node:
            return f"this connection is that of {here.node}"
        return self.admission.objection(peer.grant, hello, self.roster.others(peer.grant, node, hello))

    def _enter(self, link: Peer, node: NodeId, hello: wire.Hello) -> None:
        now_s, site = self.driver.clock(), self.site
        for earlier in self.roster.earlier_lives(now_s, link.grant, hello):
            self.lose(earlier, f"its job {hello.job} was requeued")
        new = self.roster.register(now_s, node, link, hello)
        times = site.heartbeat_s, site.silent_s, site.orphan_s, site.grace_s
        self.server.send(link, wire.Welcome(node, self.pool, *times, site.rails_per_node, site.check_limit_s))
        state = "registered" if new else "came back"
        log.info("%s %s (%s, job %s)", node, state, hello.address, hello.job or "none")
        if self._versions_seen.is_another(hello.versions):
            for line in node_remarks.differences(self.roster.versions()):
                log.warning("%s", printable(line))
        self.jobs.each(lambda keeper: keeper.registered(hello.job, hello.restart))
        if new:
            self._joined(now_s, node, hello, link.grant.node_type)
        if hello.workers or not new:
            rejoined = Rejoined(self.driver.core, self.driver.pending, node, hello, now_s)
            asyncio.get_running_loop().call_later(SETTLE_S, self._settle, link, rejoined)

    def _joined(self, now_s: float, node: NodeId, hello: wire.Hello, queue: str) -> None:
        if hello.job:
            self.driver.remark(node=node, job=hello.job)
        self._coalescer.joined(now_s, node, self._types.of(hello, queue))
        own_s = None if hello.walltime_s is None else now_s + hello.walltime_s - self.site.grace_s
        known = [end_s for end_s in (own_s, self._on_our_clock(self.jobs.end_s(hello.job))) if end_s is not None]
        if known:
            self._coalescer.ends(now_s, node, min(known))
        self._stir.set()

    def _on_our_clock(self, unix_s: float | None) -> float | None:
        return None if unix_s is None else self.driver.clock() + unix_s - time.time()

    def _settle(self, link: Peer, rejoined: Rejoined) -> None:
        """An agent's reports about its absence have arrived by now: open commands were lost with a connection."""
        pilot = self.roster.at(link)
        if pilot is None or not pilot.here:
            return
        for message in rejoined.strays():
            self.send(pilot.node, message)
        self._post(rejoined.missed())
        for given in rejoined.unanswered():
            self._effects.perform(given.command, given.event)
