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

from pilot.core.commands import ReleaseNode
from pilot.core.events import DrainRequested, Event, GroupBroken, StallFinding, TrainerHeld
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.host.printable import printable
from pilot.protocol import wire
from pilot.provisioning.keeper import Keeper
from pilot.service.agents import inbound, roster
from pilot.service.agents.admission import Admission
from pilot.service.agents.coalesce import Coalescer
from pilot.service.agents.effects import Effects
from pilot.service.agents.inbound import Inbound
from pilot.service.agents.intake import Intake, in_lines
from pilot.service.agents.members import Rendezvous, StallChecks, Unreached
from pilot.service.agents.pending import Of
from pilot.service.agents.rejoin import Rejoined
from pilot.service.agents.roster import Pilot, Roster, VersionsSeen
from pilot.service.agents.server import Peer, Server
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
"""Within this time an agent that came back has reported what happened meanwhile."""

ELSEWHERE_MAX = 100
"""Hosts outside of the pool whose pilots are told of, each once."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Service:
    """Connects the server, the driver and the effects."""

    def __init__(
        self,
        site: Site,
        pool: str,
        admission: Admission,
        *,
        server: Server,
        driver: LiveDriver,
        roster: Roster,
        launches: LaunchStore,
        solver: SolverProcess,
        sampler: SamplerProcess,
        requests: Api,
        jobs: Keeper,
    ) -> None:
        self._site = site
        self._pool = pool
        self._admission = admission
        self._server = server
        self.driver = driver
        self.roster = roster
        self._requests = requests
        self._jobs = jobs
        self._coalescer = Coalescer()
        self._intake = Intake(driver.core, driver.pending)
        self._inbound = Inbound(driver.core, driver.pending, self._broke)
        self._stall_checks = StallChecks(driver.core, driver.pending)
        self._rendezvous = Rendezvous(driver.pending, self.send, self._broke)
        self._unreached = Unreached(driver.pending)
        self.effects = Effects(site, driver.pending, launches, solver, sampler, self.send, self)
        self._stir = asyncio.Event()
        self._ticked_s = -TICK_S
        self._elsewhere: set[str] = set()
        self._trouble = ""
        self._unheard: dict[str, None] = {}
        self._seen = VersionsSeen()

    async def run(self) -> None:
        """Serve until cancelled, or until a fatal failure (the journal, an invariant)."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.driver.run(self.effects.perform))
            tasks.create_task(self._keep_time())
            tasks.create_task(self._server.run(self, self._admission.grant))

    def send(self, node: NodeId, message: wire.Sent) -> None:
        """Send to a node. What does not reach it is repeated when it comes back, or lost with the node."""
        pilot = self.roster.pilots.get(node)
        if pilot is None or not pilot.here:
            return
        assert pilot.link is not None
        if isinstance(message, ReleaseNode) and not pilot.leaving:
            pilot.leaving = message.reason
        if not self._server.send(pilot.link, message):
            self.closed(pilot.link)

    def spec(self, trainer: TrainerId) -> TrainerSpec | None:
        """As it was submitted; None: it ended long ago."""
        known = self.driver.core.trainers.get(trainer)
        return known.spec if known is not None else None

    def have_met(self, of: Of) -> bool:
        """Whether the members of a forming group have found each other."""
        return self._rendezvous.have_met(of)

    def failed_writes(self, trainer: TrainerId) -> int:
        """How often its newest state could not be written."""
        known = self.driver.core.trainers.get(trainer)
        return known.failed_writes if known is not None else 0

    def unstartable(self, trainer: TrainerId, why: str) -> None:
        """Hold a trainer that cannot continue because it needs a worker; the pool continues without it."""
        self.driver.post(TrainerHeld(trainer, f"held because none of its workers can be started: {why}"))

    def drain(self, reason: str) -> None:
        """The pool is shut down for ``reason``, unless it is already."""
        if not self.driver.core.draining:
            log.warning("the pool ends: %s", reason)
            self.driver.post(DrainRequested(reason))

    def lose(self, node: NodeId, why: str) -> None:
        """``node`` is lost: tell the core, together with other current changes; a pilot that is still running must
        leave."""
        if node not in self.roster.pilots:
            return
        log.log(logging.INFO if self.roster.pilots[node].leaving else logging.WARNING, "%s is gone: %s", node, why)
        self.send(node, wire.Forgotten(f"it counts as lost: {why}"))
        if (link := self.roster.pilots[node].link) is not None:
            self._server.drop(link)
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
            self._jobs.noticed(pilot.hello.job, cause)
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
            for line in self._intake.dropped(now_s):
                self._tell(line)
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
            self._tell(f"decisions had to wait for disk space: {self._trouble}")
            self.driver.pending.restart(now_s)
            for trainer in self._unheard:
                self._remark(trainer, "its progress reports could not be written: its ledger has a gap")
            self._unheard.clear()
        self._trouble = trouble
        return not trouble

    def _end_waits(self, now_s: float) -> None:
        """Handle everything that has timed out."""
        late = self.effects.overdue(now_s)
        for node, why in late.hopeless:
            self.lose(node, why)
        for stop in late.stops:
            self.effects.perform(stop)
        self._post(
            [
                *map(self._unreached.explained, (*late.events, *self._stall_checks.overdue(now_s))),
                *self.driver.core.due(now_s),
            ]
        )

    def _holders(self, node: NodeId) -> Iterable[NodeId]:
        """The nodes that hold the same state as ``node``."""
        occupant = self.driver.core.pool.occupant.get(node)
        trainer = self.driver.core.trainers[occupant] if occupant is not None else None
        return trainer.holders() if trainer is not None and trainer.holds_state(node) else ()

    def _undecided(self, event: GroupBroken) -> bool:
        group = self.driver.pending.groups.get((event.trainer, event.generation))
        return group is not None and any(self.roster.undecided(node) for node in group.members)

    def _broke(self, event: GroupBroken) -> None:
        self._coalescer.broken(self.driver.clock(), event)
        self._stir.set()

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
                self._requests.answer(link, message)
            case wire.Hello():
                self._greeted(link, message)
            case _:
                pilot = self.roster.at(link)
                if pilot is None:
                    self._server.refuse(link, f"it sent {type(message).__name__} before Hello")
                    return
                self.roster.heard(self.driver.clock(), pilot)
                if (taken := self._intake.taken(self.driver.clock(), pilot.node, pilot.speech, message)) is not None:
                    self._said(pilot, taken)

    # --- pilots ---------------------------------------------------------------------------------------------------

    def _greeted(self, link: Peer, hello: wire.Hello) -> None:
        node = NodeId(f"{hello.host}.{hello.pilot}")
        if reason := self._objection(link, node, hello):
            self._server.refuse(link, reason)
            is_new = hello.host not in self._elsewhere and len(self._elsewhere) < ELSEWHERE_MAX
            if reason == self._admission.elsewhere(hello) and is_new:
                self._elsewhere.add(hello.host)  # logged once: the scheduler may start many there
                self.driver.remark(text=f"a pilot was refused: {reason}")
            return
        if node in self.roster.gone:
            why = f"this pilot counts as lost: {self.roster.gone[node]}"
            self._server.send(link, wire.Forgotten(why))
            self._server.drop(link, f"{node}: {why}")
            return
        now_s, known = self.driver.clock(), self.roster.pilots.get(node)
        if not (known.speech.takes(now_s, hello) if known is not None else link.grant.may_join(now_s)):
            self._server.drop(link, f"{node} comes too often")
        elif self._server.keep(link, known.link if known is not None else None):
            self._enter(link, node, in_lines(hello))

    def _objection(self, peer: Peer, node: NodeId, hello: wire.Hello) -> str:
        if not (_NAME.fullmatch(hello.host) and _NAME.fullmatch(hello.pilot)):
            return f"not a name for a node: {node[:80]!r}"
        if self.driver.core.draining and node not in self.roster.pilots:
            return "the pool is being shut down"
        if (here := self.roster.at(peer)) is not None and here.node != node:
            return f"this connection is that of {here.node}"
        return self._admission.objection(peer.grant, hello, self.roster.others(peer.grant, node, hello))

    def _enter(self, link: Peer, node: NodeId, hello: wire.Hello) -> None:
        now_s = self.driver.clock()
        for earlier in self.roster.earlier_lives(now_s, link.grant, hello):
            self.lose(earlier, f"its job {hello.job} was requeued")
        new = self.roster.register(now_s, node, link, hello)
        site = self._site
        times = site.heartbeat_s, site.silent_s, site.orphan_s, site.grace_s
        welcome = wire.Welcome(node, self._pool, *times, site.rails_per_node, site.check_limit_s)
        self._server.send(link, welcome)
        log.info("%s %s (%s, job %s)", node, "joined" if new else "came back", hello.address, hello.job or "none")
        if self._seen.is_another(hello.versions):
            for line in roster.differences(self.roster.versions()):
                log.warning("%s", printable(line))
        self._jobs.registered(hello.job, hello.restart)
        if new:
            if hello.job:
                self.driver.remark(node=node, job=hello.job)
            self._coalescer.joined(now_s, node)
            own_s = None if hello.walltime_s is None else now_s + hello.walltime_s - site.grace_s
            known = [end_s for end_s in (own_s, self._on_our_clock(self._jobs.end_s(hello.job))) if end_s is not None]
            if known:
                self._coalescer.ends(now_s, node, min(known))
            self._stir.set()
        if hello.workers or not new:
            rejoined = Rejoined(self.driver.core, self.driver.pending, node, hello, now_s)
            asyncio.get_running_loop().call_later(SETTLE_S, self._settle, link, rejoined)

    def ends(self, node: NodeId, end_s: float | None) -> None:
        """``node`` will have left by ``end_s`` (Unix time); None: that is no longer known."""
        self._coalescer.ends(self.driver.clock(), node, self._on_our_clock(end_s))
        self._stir.set()

    def _on_our_clock(self, unix_s: float | None) -> float | None:
        return None if unix_s is None else self.driver.clock() + unix_s - time.time()

    def _settle(self, link: Peer, rejoined: Rejoined) -> None:
        """An agent's reports about its absence have arrived by now: what is still open was lost with a connection."""
        pilot = self.roster.at(link)
        if pilot is None or not pilot.here:
            return
        for message in rejoined.strays():
            self.send(pilot.node, message)
        self._post(rejoined.missed())
        for command in rejoined.unanswered():
            self.effects.perform(command)

    def _tell(self, text: str) -> None:
        log.warning("%s", text)
        self.driver.remark(text=text)

    def _said(self, pilot: Pilot, message: wire.FromAgent) -> None:
        node = pilot.node
        match message:
            case wire.Heartbeat():
                self.send(node, wire.HeartbeatSeen(message.sent_s))
                for trainer, pace in message.paces.items():
                    if self._intake.runs(node, trainer):
                        pilot.took(trainer, pace)
            case wire.Noticed():
                self.notice(pilot, message.cause, inbound.grace_s(message))
            case wire.WorkerReady():
                self._post(self._inbound.worker_ready(node, message))
            case wire.CodeLoaded():
                self._post(self._inbound.code_loaded(node, message))
            case wire.WorkerExited():
                self._post(self._inbound.worker_exited(node, message))
            case wire.RankAddress():
                self._rendezvous.arrived(node, message)
            case wire.RankJoined():
                self._rendezvous.joined(node, message)
            case wire.PeersUnreached():
                self._unreached.told(node, message)
            case wire.GroupFormed():
                self._post(self._inbound.group_formed(node, message))
            case wire.GroupBroken():
                self._inbound.group_broken(node, message)
            case wire.RankPaused():
                self._post(self._inbound.rank_paused(node, message))
            case wire.RankStalled():
                self._post(self._stall_checks.rank_stalled(node, message))
            case wire.RankExamined():
                self._looked(node, message)
            case wire.CheckpointWritten():
                self._checkpoint_done(node, message)
            case wire.ScriptChecked():
                self._post(self._inbound.script_checked(node, message))
            case wire.Progress():
                self._progressed(node, message)
            case wire.TrainerFinished():
                self._post(self._inbound.trainer_finished(node, message))
            case wire.Remark():
                self._remark(message.trainer, message.text)
            case _:
                assert pilot.link is not None
                self._server.refuse(pilot.link, f"an agent does not send {type(message).__name__}")

    def _progressed(self, node: NodeId, message: wire.Progress) -> None:
        if not self.driver.overfull:
            self._post(self._inbound.progress(node, message))
        else:
            self._unheard[message.trainer] = None

    def _looked(self, node: NodeId, message: wire.RankExamined) -> None:
        verb = {StallFinding.SLOW.value: "is slow", StallFinding.LOST.value: "was stuck and was restarted"}.get(
            message.seen
        )
        trainer = self.driver.core.trainers.get(TrainerId(message.trainer))
        in_a_step = trainer is not None and trainer.group is not None and trainer.group.generation < message.generation
        expected = in_a_step and message.seen == StallFinding.SLOW.value  # newcomers wait for the end of a long step
        if verb and not expected and self._stall_checks.awaits(node, message):
            self._remark(message.trainer, f"{node} {verb}, the others wait for it: {message.detail}")
        self._post(map(self._unreached.explained, self._stall_checks.rank_examined(node, message)))

    def _checkpoint_done(self, node: NodeId, message: wire.CheckpointWritten) -> None:
        if message.error:
            why = f"a checkpoint at step {message.step} failed on {node}: {message.error}"
            self._remark(message.trainer, why, failed="checkpoint")
        self._post(self._inbound.checkpoint_written(node, message))

    def _remark(self, trainer: str, text: str, **more: str) -> None:
        log.info("%s: %s", trainer, text)
        if TrainerId(trainer) in self.driver.core.trainers:
            self.driver.remark(trainer=trainer, text=text, **more)
