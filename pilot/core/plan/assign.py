"""From counts to nodes: which nodes trainers give back and get (without migration, FreeTrain §3.3.3)."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pilot.core.ids import NodeId, TrainerId
from pilot.core.plan.problem import NOBODY
from pilot.core.pool.pool import NONE_END, ExpiringNodes, Pool, in_company
from pilot.core.trainer.trainer import Trainer

ALIKE: Mapping[str, Mapping[TrainerId, int]] = MappingProxyType({})
"""All nodes are of one type."""

Packing = Callable[[Sequence[Sequence[NodeId]], Sequence[int], Sequence[NodeId]], tuple[list[int], list[NodeId]]]
"""From the nodes that growing trainers hold, how many more they get, and the free nodes: the order in which the
trainers take nodes, and that of the nodes."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """``changed``: the trainers with a new target. ``short``: those that cannot get their count, with the number of
    nodes that they can get; if there are any, no target has been changed.
    """

    changed: list[Trainer]
    short: dict[TrainerId, int]


def assign(
    pool: Pool,
    trainers: Sequence[Trainer],
    counts: Mapping[TrainerId, int],
    packing: Packing | None = None,
    ending: ExpiringNodes = NONE_END,
    late: Mapping[TrainerId, int] = NOBODY,
    by_type: Mapping[str, Mapping[TrainerId, int]] = ALIKE,
) -> Assignment:
    """Set the targets of ``trainers`` (in submission order) so that each has its count, if that can be done.

    A trainer that shrinks keeps a subset of its nodes, one that grows keeps them all, so nothing migrates (eq. 6).
    Nodes that change hands go in the pool's node order. A parked trainer that gets nothing keeps the nodes that nobody
    else wants: with one more of them it can go on from the state that it holds in memory. A node that was set aside for
    a trainer, or that it cannot use, is not handed out to it: trainers with the most such nodes choose first, and may
    fall short of their count. Only if one could not run at all does anything migrate: another trainer takes the node
    and gives up one that it can use.
    ``packing`` may choose in which order growing trainers take which nodes. A trainer gets as many of the
    ``ending`` nodes as ``late`` has for it; others get one only if nothing else is left. A trainer that shrinks so that
    another can grow keeps its nodes that end soon, so that nobody pays for a rescale onto them. If nobody grows, it
    keeps those that stay.

    ``by_type``: the counts of each type of nodes, if there are several. Then all this holds for each type by itself.
    """
    counts = {t.id: counts.get(t.id, 0) for t in trainers}
    owner, targets = dict(pool.owner), {t.id: list(t.target) for t in trainers}
    dropped = [t for t in trainers if counts[t.id] == 0 and t.parked]
    parts = [_Part(pool, trainers, of, kind) for kind, of in by_type.items()] or [_Part(pool, trainers, counts)]
    for part in parts:
        part.share_out(dropped, packing, ending, late)
    donors = [donor for part in parts for trainer in part.starved() for donor in part.exchange(trainer)]
    short = {t.id: len(t.target) for part in parts for t in part.growing if part.missing(t) > 0}
    changed = {t.id: t for t in (*(t for part in parts for t in part.changed), *donors)}
    if short:
        pool.owner = owner
        for trainer in trainers:
            trainer.target = targets[trainer.id]
    return Assignment([] if short else list(changed.values()), short)


class _Part:
    """The nodes of one ``kind`` (None: all), of which each trainer is to have a number. ``changed`` are those of which
    the number differs, ``growing`` those that get more, ``free`` the nodes that are left."""

    def __init__(
        self, pool: Pool, trainers: Sequence[Trainer], counts: Mapping[TrainerId, int], kind: str | None = None
    ) -> None:
        self.pool, self.trainers, self.counts, self.kind = pool, trainers, counts, kind
        self.changed = [t for t in trainers if self.missing(t)]
        self.growing = [t for t in self.changed if self.missing(t) > 0]
        self.free: list[NodeId] = []

    def of(self, nodes: list[NodeId]) -> list[NodeId]:
        """Those of ``nodes`` that are of this kind."""
        return nodes if self.kind is None else [node for node in nodes if self.pool.kind_of(node) == self.kind]

    def missing(self, trainer: Trainer) -> int:
        """How many nodes of this kind the trainer lacks; less than 0: it has too many."""
        return self.counts.get(trainer.id, 0) - len(self.of(trainer.target))

    def take(
        self, trainer: Trainer, surplus: int, ending: ExpiringNodes, *, stays_go: bool, keeps: Container[NodeId] = ()
    ) -> None:
        """Take ``surplus`` nodes of this kind, apart from those that the trainer ``keeps``."""
        own = dict.fromkeys(self.of(trainer.target))
        kept = {node: None for node in trainer.target if node in keeps or node not in own}
        left = max(0, len(trainer.target) - surplus)
        give_back(self.pool, trainer, left, ending, stays_go=stays_go, keeps=kept)

    def share_out(
        self, dropped: Sequence[Trainer], packing: Packing | None, ending: ExpiringNodes, late: Mapping[TrainerId, int]
    ) -> None:
        """Set the targets as far as there are nodes. Of the parked trainers ``dropped`` only what others want is
        taken."""
        pool, growing = self.pool, self.growing
        for trainer in self.changed:
            if trainer not in dropped:
                self.take(trainer, -self.missing(trainer), ending, stays_go=bool(growing))
        growing.sort(key=lambda t: (not t.unfit_types(pool), -len(t.evidence.aside)))
        wanted = {t.id: self.missing(t) for t in growing}
        for trainer in [t for t in self.changed if t in dropped]:
            for useless, missing in _missing(pool, growing, wanted, self.of(pool.available())):
                self.take(trainer, missing, ending, stays_go=True, keeps=useless)
            if not trainer.parked:  # its state went with them
                give_back(pool, trainer, 0)
        free = self.of(pool.available()) if growing else []
        if packing is not None and growing:
            order, free = packing([t.target for t in growing], [wanted[t.id] for t in growing], free)
            growing = [growing[i] for i in order]
        for trainer in growing:
            free = _give(pool, trainer, free, wanted[trainer.id], ending, late.get(trainer.id, 0))
        self.free = free

    def starved(self) -> list[Trainer]:
        """The trainers that lack nodes of this kind, and have too few to run."""
        return [t for t in self.growing if self.missing(t) > 0 and len(t.target) < t.spec.min_nodes]

    def exchange(self, trainer: Trainer) -> list[Trainer]:
        """Let other trainers, the last submitted first, swap nodes for free ones, so that ``trainer`` can run.

        A trainer that can use no free node gives up those that it can spare. A parked one has already given up what
        others can use.
        """
        donors, avoids = [], trainer.avoids(self.pool)
        others = [d for d in reversed(self.trainers) if d is not trainer and d.spec.nodes_per_replica == 1]
        for donor in [d for d in others if not d.parked]:
            avoids_too = donor.avoids(self.pool)
            for node in [n for n in reversed(self.pool.in_order(self.of(donor.target))) if not avoids(n)]:
                taken = next((n for n in self.free if not avoids_too(n)), None)
                spared = taken is not None or _can_spare(donor)
                if not spared or self.missing(trainer) <= 0 or len(trainer.target) >= trainer.spec.min_nodes:
                    break
                donor.target.remove(node)
                _hand_out(self.pool, trainer, [node], 1)
                if taken is not None:
                    self.free.remove(taken)
                    _hand_out(self.pool, donor, [taken], 1)
                donors.append(donor)
        return donors


def give_back(
    pool: Pool,
    trainer: Trainer,
    count: int,
    ending: ExpiringNodes = NONE_END,
    *,
    stays_go: bool = False,
    keeps: Container[NodeId] = (),
) -> None:
    """Take nodes until ``count`` are left, apart from those that it ``keeps``: those without state first, so that a
    shrink never loses a state; then those that end soon, or, if ``stays_go``, those that do not."""
    surplus = len(trainer.target) - count
    if surplus <= 0:
        return
    ordered = [node for node in pool.taken_back(trainer.target) if node not in keeps]
    ordered.sort(key=lambda node: (trainer.holds_state(node), pool.ends_before(node, ending.until_s) is stays_go))
    complete = dict.fromkeys(trainer.complete_replicas(ordered))  # replicas of several nodes go as such
    given = dict.fromkeys([*(node for node in ordered if node not in complete), *complete][:surplus])
    trainer.target = [n for n in trainer.target if n not in given]
    for node in given:
        del pool.owner[node]


def start_on(pool: Pool, trainer: Trainer, count: int, ending: ExpiringNodes = NONE_END) -> None:
    """Give ``trainer``, which has no nodes, ``count`` free ones, or as many as it can run on; ``ending`` ones only if
    nothing else is left.
    """
    free = pool.available()
    most = len(_can_take(pool, trainer, free, count))
    _give(pool, trainer, free, trainer.spec.fitting(most) if most >= trainer.spec.min_nodes else 0, ending, 0)


def _give(
    pool: Pool, trainer: Trainer, free: list[NodeId], count: int, ending: ExpiringNodes, late: int
) -> list[NodeId]:
    """Give ``trainer`` ``count`` of the ``free`` nodes, ``late`` of them ending ones, if there are enough of both;
    returns the remaining free nodes.
    """
    soon = [node for node in ending.nodes if node in free]
    stay, most = [node for node in free if node not in soon], len(trainer.target) + count
    soon = _hand_out(pool, trainer, soon, late)
    missing = most - len(trainer.target)
    left = set(_hand_out(pool, trainer, in_company(pool, trainer.target, stay, missing, ending.until_s), missing))
    soon = _hand_out(pool, trainer, soon, most - len(trainer.target))
    return [node for node in stay if node in left] + soon


def _missing(
    pool: Pool, growing: Sequence[Trainer], wanted: Mapping[TrainerId, int], free: list[NodeId]
) -> Iterator[tuple[Container[NodeId], int]]:
    """How many nodes are still missing once the ``free`` ones have been handed out, and which nodes are of no use for
    that."""
    choosy = [t for t in growing if t.evidence.aside or t.unfit_types(pool)]
    for trainer in choosy:
        taken = dict.fromkeys(_can_take(pool, trainer, free, wanted[trainer.id]))
        free = [node for node in free if node not in taken]
        yield [*filter(trainer.avoids(pool), pool.nodes)], wanted[trainer.id] - len(taken)
    yield (), max(0, sum(wanted[t.id] for t in growing if t not in choosy) - len(free))


def _can_take(pool: Pool, trainer: Trainer, free: list[NodeId], count: int) -> list[NodeId]:
    """Up to ``count`` of the ``free`` nodes."""
    avoids = trainer.avoids(pool)
    return pool.handed_out(trainer.target, [node for node in free if not avoids(node)], count)


def _hand_out(pool: Pool, trainer: Trainer, free: list[NodeId], count: int) -> list[NodeId]:
    """Give ``trainer`` ``count`` of the ``free`` nodes; returns the remaining ones."""
    given = dict.fromkeys(_can_take(pool, trainer, free, count))
    trainer.target.extend(given)
    for node in given:
        pool.owner[node] = trainer.id
    return [node for node in free if node not in given]


def _can_spare(trainer: Trainer) -> bool:
    """Whether it can run with one node fewer, or cannot run anyway."""
    return len(trainer.target) != trainer.spec.min_nodes
