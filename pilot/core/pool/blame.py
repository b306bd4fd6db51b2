"""The fault of a failure: the node's or the script's.

One failure says little: a script may be wrong, and a node may be sick. What fails on one node and works on others is
the node's fault, what fails everywhere is the script's; until that is known, the trainer tries other nodes:

=========================================================  ==========================================================
what is known                                              what follows
=========================================================  ==========================================================
a worker raised while starting, or was not warm in time;   the node is *set aside* for this trainer: it gets other
three deaths while starting; three groups that it kept     nodes, and this one is in *doubt*
from forming; three deaths in groups, on at most two
nodes, while others hold the state, without a step in
between or within half an hour
its worker gets warm elsewhere (for a failure while        the doubt is settled: the trainer blames the node
starting), its group makes a new step (for one in a group)
it could not read its checkpoint, or its folder when it    the node is set aside for this trainer, for a minute; if it
was to start                                               is read elsewhere, and only one failed, it blames the node;
                                                           if nowhere for five minutes, the trainer is held
members of a group that did not form cannot reach each     the fewest without which it could have formed are set
other through the network                                  aside and blamed: no script can cause that
in the first step with it, it computes another gradient    the node is set aside for this trainer: if another one
than a node that trains, from the same samples             joins without, it blames the node; if a second one
                                                           differs, it grows no more, and no node is blamed
its group computes another gradient than before the        the group ends, the node that noticed is set aside for
resume, from the same samples and parameters               this trainer, and another group tries: if that differs,
                                                           too, or there is none, the trainer fails
the same exception ended the script in the same line on    the script's fault: the trainer fails; if it runs on
another node, without a step in between (unless a node     others, the node is set aside for this trainer, which stops
may cause it: by its files, memory or devices)             growing; no node is blamed
its worker loaded other code than the trainer's first one  the node is set aside for this trainer, which stops
                                                           growing; no node is blamed, as any would load that
a second trainer blames the node, or the same one again    the node is set aside for all; work on it goes on
three nodes in doubt, or all that there are, or the same   the script's fault: the trainer fails; if it runs on
one once more; and nothing of the trainer runs             others, it only stops growing for a time
the trainer fails                                          its blames are forgotten
time passed (``NodeRetried``)                              it is tried again; each time takes twice as long
a person clears it (``NodeCleared``)                       nothing is known about it any more
=========================================================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pilot.core.commands import Command, Outcome, SetNodeAside
from pilot.core.events import NodeRetried
from pilot.core.growing import growing_s
from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool.evidence import Accusation, Evidence, Fault, SetAside, Stage, headline
from pilot.core.pool.pool import Pool
from pilot.core.trainer.trainer import Trainer, WorkerPhase
from pilot.core.trainer.transitions import Noted

NODES_TRIED = 3
"""A failure on this many nodes, with no progress on another one since, is the script's fault."""

GROUPS_TRIED = 2
"""If groups with so many nodes resume otherwise than the trainer went on before, that is the script's fault."""

AGAIN_S = 1800.0
"""A node that was set aside for the first time is tried again after this time."""

LONGEST_S = 86400.0
BLAMES = 2
"""After this many, by one trainer or several, a node is set aside for all; after it was tried again, one is enough."""


@dataclass(eq=False)
class BlameState:
    """Who blamed nodes (None: no trainer's word was needed), how often they were set aside for all, and which trainers
    have evidence against them."""

    blames: dict[NodeId, list[TrainerId | None]] = field(default_factory=dict)
    times: dict[NodeId, int] = field(default_factory=dict)
    known: dict[NodeId, dict[TrainerId, None]] = field(default_factory=dict)


class Blame(BlameState):
    """The evidence of all trainers against the pool's nodes."""

    def __init__(self, pool: Pool, trainers: Mapping[TrainerId, Trainer], state: BlameState | None = None) -> None:
        super().__init__(**vars(state or BlameState()))
        self._pool = pool
        self._trainers = trainers

    def judge(self, now_s: float, trainer: Trainer, noted: Noted) -> None:
        """Add what follows from the evidence to ``noted``: nodes that are set aside, or that the script is at fault."""
        if noted.failure:
            return
        if noted.works is not None:
            for node in trainer.evidence.worked(*noted.works):
                self._blamed(now_s, node, trainer, noted, by=trainer.id)
        elif not trainer.stops:  # otherwise no worker of it is started again, here or elsewhere
            commands = list(noted.commands)
            for accusation in [a for a in noted.accusations if a.node in self._pool]:
                if failure := self._accused(now_s, trainer, accusation, noted):
                    noted.commands, noted.failure = commands, failure
                    break

    def _accused(self, now_s: float, trainer: Trainer, accusation: Accusation, noted: Noted) -> str:
        """Record a failure on a node; returns why the script is at fault, if it is."""
        node, evidence = accusation.node, trainer.evidence
        self.known.setdefault(node, {})[trainer.id] = None
        if not evidence.struck(accusation):
            return ""
        if accusation.stage is Stage.JOIN and (trainer.differs or evidence.doubted(Stage.JOIN, without=node)):
            noted.replan = self._differs(trainer, accusation)
            return ""
        noted.commands.append(self._set_aside(now_s, trainer, accusation))
        noted.replan = f"{node} was set aside for {trainer.id}"
        match accusation.fault:
            case Fault.NODE:
                self._blamed(now_s, node, trainer, noted, by=None)
            case Fault.SCRIPT:
                trainer.refusal = accusation.reason
                evidence.doubts.clear()
            case Fault.UNKNOWN:
                once_more = node in evidence.doubts
                evidence.doubts[node] = accusation.stage
                return self._script(trainer, accusation, once_more)
        return ""

    def retried(self, event: NodeRetried) -> str:
        """Use a node again; returns why another plan is needed ("": it was not set aside)."""
        if event.trainer is None:
            return f"{event.node} is tried again" if self._pool.aside.pop(event.node, None) else ""
        trainer = self._trainers[event.trainer] if event.trainer in self.known.get(event.node, {}) else None
        if trainer is None or trainer.evidence.aside.pop(event.node, None) is None:
            return ""
        trainer.evidence.strikes.pop(event.node, None)
        trainer.refusal = ""
        return f"{event.node} is tried again for {event.trainer}"

    def forget(self, node: NodeId) -> bool:
        """Forget the evidence against ``node``, which is gone or repaired; returns whether there was any."""
        trainers = self.known.pop(node, {})
        for trainer in trainers:
            self._trainers[trainer].evidence.forget(node)
            self._trainers[trainer].refusal = ""
        self.blames.pop(node, None)
        self.times.pop(node, None)
        return self._pool.aside.pop(node, None) is not None or bool(trainers)

    def ended(self, trainer: Trainer) -> None:
        """Forget the evidence of ``trainer``, which has ended. Nodes that it blamed stay blamed, unless it has failed:
        then the fault was its script's.
        """
        for trainers in self.known.values():
            trainers.pop(trainer.id, None)
        trainer.evidence = Evidence()
        for node, blames in self.blames.items() if trainer.closing is Outcome.FAILED else ():
            before, blames[:] = len(blames), [by for by in blames if by != trainer.id]
            if len(blames) < min(before, BLAMES):
                self._pool.aside.pop(node, None)

    def set_aside(self) -> Iterator[tuple[NodeId, TrainerId | None, SetAside]]:
        """Every node that is set aside, for which trainer (None: for all), and until when."""
        for node, aside in self._pool.aside.items():
            yield node, None, aside
        for node, trainers in self.known.items():
            for trainer in trainers:
                its = self._trainers[trainer].evidence.aside
                if node in its:
                    yield node, trainer, its[node]

    def useless_to(self, trainers: Sequence[Trainer], *, lasting: bool = False) -> list[NodeId]:
        """The free nodes, not set aside for all, that are so for each of ``trainers``; ``lasting``: not only soon."""
        if not trainers:
            return []
        first, *others = (trainer.evidence.aside for trainer in trainers)
        nobodys = (node for node in first if all(node in aside for aside in others))
        shunned = [node for node in nobodys if not (lasting and first[node].soon)]
        return [node for node in shunned if self._pool.is_free(node) and node not in self._pool.aside]

    def due(self, now_s: float) -> list[NodeRetried]:
        """The nodes whose time set aside is over."""
        return [NodeRetried(node, trainer) for node, trainer, aside in self.set_aside() if aside.until_s <= now_s]

    def _differs(self, trainer: Trainer, accusation: Accusation) -> str:
        """Several nodes that joined differ: stop growing, and blame none. Returns why another plan is needed."""
        evidence, node = trainer.evidence, accusation.node
        if not trainer.differs:
            nodes = " and ".join([*evidence.doubted(Stage.JOIN, without=node), node])
            trainer.differs = f"what it computes on {nodes} differs: {headline(accusation.reason)}"
        evidence.doubts[node] = Stage.JOIN
        evidence.pardon(Stage.JOIN)
        self._take_back(trainer, node)
        return f"{trainer.id} no longer grows"

    def _take_back(self, trainer: Trainer, node: NodeId) -> None:
        if node in trainer.target:
            trainer.target.remove(node)
            del self._pool.owner[node]

    def _blamed(self, now_s: float, node: NodeId, trainer: Trainer, noted: Noted, by: TrainerId | None) -> None:
        self.blames.setdefault(node, []).append(by)
        if len(self.blames[node]) >= BLAMES and node in self._pool and node not in self._pool.aside:
            noted.commands.append(self._set_aside_for_all(now_s, node, trainer))
            noted.replan = f"{node} was set aside for all trainers"

    def _script(self, trainer: Trainer, accusation: Accusation, once_more: bool) -> str:
        """Why the script is at fault; "" if that is not known."""
        if accusation.stage in (Stage.READ, Stage.JOIN):  # the others train on
            return ""
        doubted = trainer.evidence.doubted(accusation.stage)
        lives = any(w.phase is not WorkerPhase.STOPPING for n, w in trainer.workers.items() if n not in doubted)
        tried_out = len(doubted) >= (GROUPS_TRIED if accusation.stage is Stage.RESUME else NODES_TRIED)
        if lives and accusation.stage is Stage.START:
            trainer.refusal = accusation.reason if tried_out else trainer.refusal
            return ""
        if not tried_out and (lives or (self._others(trainer) and not once_more)):
            return ""
        where = f"on {len(doubted)} nodes and worked on none since; on {accusation.node}: "
        return f"it failed {where if len(doubted) > 1 else f'on {accusation.node}: '}{accusation.reason}"

    def _others(self, trainer: Trainer) -> bool:
        """Whether there are nodes on which ``trainer`` could be tried."""
        pool = self._pool
        avoids = trainer.avoids(pool)
        return any(not (node in pool.leaving or node in pool.aside or avoids(node)) for node in pool.nodes)

    def _set_aside(self, now_s: float, trainer: Trainer, accusation: Accusation) -> Command:
        node, evidence = accusation.node, trainer.evidence
        if accusation.again_s is None:
            evidence.times[node] = evidence.times.get(node, 0) + 1
        until_s = now_s + (accusation.again_s or _for_s(evidence.times[node]))
        evidence.aside[node] = SetAside(until_s, accusation.reason, accusation.again_s is not None)
        self._take_back(trainer, node)
        return SetNodeAside(node, trainer.id, until_s, accusation.reason)

    def _set_aside_for_all(self, now_s: float, node: NodeId, trainer: Trainer) -> Command:
        self.times[node] = self.times.get(node, 0) + 1
        aside = trainer.evidence.aside.get(node)
        last = f"; the last time: {headline(aside.reason)}" if aside is not None else ""
        reason = f"trainers that work elsewhere failed on it {BLAMES} times{last}"
        self._pool.aside[node] = SetAside(now_s + _for_s(self.times[node]), reason)
        return SetNodeAside(node, None, self._pool.aside[node].until_s, reason)


def _for_s(times: int) -> float:
    return growing_s(AGAIN_S, times - 1, LONGEST_S)
