"""The registered pilots, and when one counts as lost.

==========================================  ==================================================================
the node                                    is lost
==========================================  ==================================================================
its connection closed, notice was given     at once
its connection closed                       after ``AWAY_S``, unless it registers again
… and so did those of all state holders     after ``AWAY_ALONE_S``: no survivor is waiting
it is silent (stopped, network cut)         after the site's ``silent_s``
… and so are all state holders              after ``orphan_s``, when it has stopped stepping by itself: only
                                            then may its trainer start again from a checkpoint
==========================================  ==================================================================

After a restart of the coordinator, its earlier nodes count as silent since the restart. A lost node never comes back:
its pilot gets ``Forgotten``, and joins again as a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pilot.core.ids import NodeId
from pilot.protocol import wire
from pilot.protocol.fields import StepTimes, Versions
from pilot.service.agents.admission import Grant, Living, same_job
from pilot.service.agents.intake import Quota
from pilot.service.agents.server import Peer
from pilot.service.durability.restore import remember_lost
from pilot.site.site import Site

AWAY_S = 0.25
AWAY_ALONE_S = 2.0
DEAF_S = 1.0
NOTICE_CHECK_S = 0.05

Holders = Callable[[NodeId], Iterable[NodeId]]
"""The nodes that hold the same trainer's state as a node, including itself; empty if it holds no state."""


@dataclass(slots=True)
class Pilot:
    """One node and its agent. ``hello`` is None for a node from before a restart that has not come back yet; ``timed``
    is the newest measurement of a worker, with its trainer.
    """

    node: NodeId
    hello: wire.Hello | None
    link: Peer | None
    joined_s: float
    heard_s: float
    away_s: float | None = None
    leaving: str = ""
    timed: tuple[str, StepTimes] | None = None
    quota: Quota = field(default_factory=Quota)

    @property
    def job(self) -> str | None:
        """Its job, "" if it has none; None: it has not registered since a restart."""
        return self.hello.job if self.hello is not None else None

    @property
    def here(self) -> bool:
        """Whether messages can be sent to it."""
        return self.link is not None and self.away_s is None


Kinship = tuple[Grant, str]
"""Identifies pilots that may belong to restarts of the same job: by a job's own token, or by the job's name."""


def _kinship(grant: Grant, hello: wire.Hello) -> Kinship | None:
    """None: a pilot started outside of a job has no earlier restarts."""
    if grant.file is not None:
        return grant, ""
    return (grant, hello.job) if hello.job else None


@dataclass(slots=True)
class Roster:
    """The pilots by node. ``gone`` has the reasons of those that left.

    ``_by_heard`` has them in the order in which they were last heard from, ``_away`` has those whose connection closed,
    so that lost ones are found without checking the others.
    """

    site: Site
    pilots: dict[NodeId, Pilot] = field(default_factory=dict)
    gone: dict[NodeId, str] = field(default_factory=dict)
    _by_link: dict[Peer, Pilot] = field(default_factory=dict)
    _kin: dict[Kinship, dict[NodeId, Pilot]] = field(default_factory=dict)
    _by_heard: OrderedDict[NodeId, Pilot] = field(default_factory=OrderedDict)
    _away: dict[NodeId, Pilot] = field(default_factory=dict)

    def expect(self, now_s: float, nodes: Iterable[NodeId]) -> None:
        """After a restart: ``nodes`` may come back."""
        for node in nodes:
            self.pilots[node] = self._by_heard[node] = Pilot(node, None, None, now_s, now_s)

    def register(self, now_s: float, node: NodeId, link: Peer, hello: wire.Hello) -> bool:
        """Admit a pilot; False if it was here already and came back."""
        known = self.pilots.get(node)
        if known is not None:
            self._unlink(known)
            known.hello, known.link, known.away_s = hello, link, None
            self._away.pop(node, None)
        pilot = self.pilots.setdefault(node, Pilot(node, hello, link, now_s, now_s))
        self._by_link[link] = self._by_heard[node] = pilot
        self.heard(now_s, pilot)
        if kinship := _kinship(link.grant, hello):
            self._kin.setdefault(kinship, {})[node] = pilot
        return known is None

    def versions(self) -> dict[NodeId, Versions]:
        """The library versions of the nodes, as far as they are known."""
        return {pilot.node: pilot.hello.versions for pilot in self.pilots.values() if pilot.hello is not None}

    def others(self, grant: Grant, node: NodeId, hello: wire.Hello) -> list[Living]:
        """The other connected pilots of the job of ``hello`` that have the same token."""
        found = ((p.node, p.hello) for p in self._kin_of(grant, hello) if p.node != node)
        return [Living(name, known.restart) for name, known in found if known and same_job(known.job, hello.job)]

    def earlier_lives(self, now_s: float, grant: Grant, hello: wire.Hello) -> list[NodeId]:
        """Nodes of the same batch job before it was requeued; the batch system has ended them.

        A job's own token proves that. With the enrolment token anybody can name any job, so then a pilot that answers
        stays.
        """
        return [p.node for p in self._kin_of(grant, hello) if self._is_earlier(now_s, p, hello)]

    def _kin_of(self, grant: Grant, hello: wire.Hello) -> list[Pilot]:
        kinship = _kinship(grant, hello)
        return list(self._kin.get(kinship, {}).values()) if kinship else []

    def _unlink(self, pilot: Pilot) -> None:
        if pilot.link is None or pilot.hello is None:
            return
        del self._by_link[pilot.link]
        kinship = _kinship(pilot.link.grant, pilot.hello)
        if kinship:
            del self._kin[kinship][pilot.node]
            if not self._kin[kinship]:
                del self._kin[kinship]

    def _is_earlier(self, now_s: float, pilot: Pilot, hello: wire.Hello) -> bool:
        if pilot.hello is None or pilot.link is None or not hello.job:
            return False
        requeued = pilot.hello.job == hello.job and pilot.hello.restart < hello.restart
        if pilot.link.grant.file is None:
            return requeued and not self._answers(now_s, pilot.node)
        return requeued or not same_job(pilot.hello.job, hello.job)

    def at(self, link: Peer) -> Pilot | None:
        """The pilot of connection ``link``; None if it has not registered."""
        return self._by_link.get(link)

    def heard(self, now_s: float, pilot: Pilot) -> None:
        """``pilot`` sent something."""
        pilot.heard_s = now_s
        self._by_heard.move_to_end(pilot.node)

    def excuse(self, now_s: float, deaf_s: float) -> None:
        """The coordinator was stopped, or got no CPU time, for ``deaf_s``: no pilot was silent then."""
        if deaf_s < DEAF_S:
            return
        for pilot in self.pilots.values():
            pilot.heard_s = min(now_s, pilot.heard_s + deaf_s)
            pilot.away_s = min(now_s, pilot.away_s + deaf_s) if pilot.away_s is not None else None

    def closed(self, now_s: float, link: Peer) -> Pilot | None:
        """A connection closed; returns its pilot."""
        pilot = self.at(link)
        if pilot is not None and pilot.away_s is None:
            pilot.away_s = now_s
            self._away[pilot.node] = pilot
        return pilot

    def remove(self, node: NodeId, why: str) -> None:
        """``node`` is lost."""
        self._unlink(self.pilots.pop(node))
        del self._by_heard[node]
        self._away.pop(node, None)
        remember_lost(self.gone, node, why)

    def undecided(self, node: NodeId) -> bool:
        """Whether ``node`` may be lost: its connection closed a moment ago."""
        pilot = self.pilots.get(node)
        return pilot is not None and pilot.away_s is not None

    def lost(self, now_s: float, holders: Holders) -> list[tuple[NodeId, str]]:
        """The nodes that are lost by now, and why. They stay in the roster until :meth:`remove` is called."""
        suspects = [*self._away.values(), *self._silent(now_s)]
        found = [(p.node, self._loss(now_s, p, holders)) for p in suspects]
        return [(node, why) for node, why in found if why]

    def _silent(self, now_s: float) -> Iterator[Pilot]:
        for pilot in self._by_heard.values():
            if now_s - pilot.heard_s < self.site.silent_s:
                return
            if pilot.away_s is None:
                yield pilot

    def due_s(self, now_s: float) -> float:
        """When to check for losses again."""
        soonest = now_s + self.site.heartbeat_s / 2
        if self._away:
            return min(soonest, now_s + NOTICE_CHECK_S)
        return soonest

    def _loss(self, now_s: float, pilot: Pilot, holders: Holders) -> str:
        if pilot.away_s is not None:
            patience_s = AWAY_ALONE_S if self._alone(now_s, pilot, holders) else AWAY_S
            if pilot.leaving:
                return f"left: {pilot.leaving}"
            return "its connection closed" if now_s - pilot.away_s >= patience_s else ""
        silent_s = now_s - pilot.heard_s
        if self._alone(now_s, pilot, holders) and silent_s < self.site.orphan_s + self.site.heartbeat_s:
            return ""
        return f"silent for {silent_s:.1f} s"

    def _alone(self, now_s: float, pilot: Pilot, holders: Holders) -> bool:
        """Whether no other answering pilot holds the state that ``pilot`` holds."""
        nodes = list(holders(pilot.node))
        return bool(nodes) and not any(self._answers(now_s, node) for node in nodes)

    def _answers(self, now_s: float, node: NodeId) -> bool:
        pilot = self.pilots.get(node)
        return pilot is not None and pilot.here and now_s - pilot.heard_s < self.site.silent_s
