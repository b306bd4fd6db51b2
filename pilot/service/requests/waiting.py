"""Sentences about what trainers wait for, and about their troubles, for ``pilot status`` and ``pilot ls``."""

from __future__ import annotations

from pilot.core.coordinator import Coordinator
from pilot.core.plan.prognosis import Prognosis
from pilot.core.pool.evidence import DEATHS_WITHIN_S
from pilot.core.trainer.situation import WRITES_TRIED
from pilot.core.trainer.trainer import Phase, Trainer
from pilot.core.trainer.transitions import DEATHS_ALLOWED
from pilot.history.monitor import Monitor
from pilot.history.records import TrainerRecord
from pilot.history.words import counted, duration, expected_start, node_count
from pilot.protocol.pool_status import KeeperStatus

NODES_NAMED = 3
"""Most nodes that are named because processes die there, or because they are busy."""

QUIET_S = 120.0
"""A trainer that reports no progress for this long gets a remark, and so does a script that has not reached its
training after this long."""


def place_in_queue(prognosis: Prognosis) -> str:
    """A trainer's place among those that wait, and its expected start, in words."""
    place = f"number {prognosis.place} of {counted(prognosis.waiting, 'waiting trainer')}"
    if prognosis.starts_in_s:
        about = "within" if prognosis.turn else "in roughly" if prognosis.rough else "in about"
        return f"{place}, expected to start {about} {duration(prognosis.starts_in_s)}"
    if prognosis.starts_in_s is None and prognosis.endless:
        return f"{place}, start unknown: it is not known how long {prognosis.endless} will run"
    return place


class Waiting:
    """Computes once what is needed for all trainers."""

    def __init__(self, core: Coordinator, monitor: Monitor, keeper: KeeperStatus) -> None:
        self._core, self._draining, self._has_nodes = core, core.draining, bool(core.pool.nodes)
        self._admitted = {trainer.id for trainer in core.admitted()}
        sized = core.config.max_parallel_trainers is None
        self._share = "share the pool, and more would hardly use it better" if sized else "run at a time"
        self._free = core.pool.available()
        self._busy = [(node, core.pool.occupant[node]) for node in core.pool.busy]
        self._monitor = monitor
        self._keeper = keeper

    def of(self, trainer: Trainer) -> str:
        """A sentence about what ``trainer`` is waiting for; "" if nothing."""
        match trainer.phase:
            case Phase.QUEUED:
                return _unread(trainer) + self._queued(trainer)
            case Phase.STARTING:
                then = self._starting(trainer) or _joining(trainer) or "waiting for its nodes to become free"
                return _unread(trainer) + then
            case Phase.PAUSED:
                return _paused(trainer) or self._starting(trainer) or _joining(trainer)
            case Phase.RUNNING:
                pausing = "pausing at the next common step" if trainer.pausing else ""
                return "; ".join(
                    filter(None, [pausing, trainer.profile.sentence(), self._starting(trainer, more=True)])
                )
            case Phase.SHELVED | Phase.COMPLETE:
                return trainer.shelved
            case Phase.CLOSING:
                return _after_loop(trainer, self._monitor) or "its processes are being stopped"
            case _:
                return ""

    def _queued(self, trainer: Trainer) -> str:
        if self._draining:
            return "waiting until the pool is up again"
        if trainer.held:
            return f"{trainer.held}; pilot release {trainer.id} gives it nodes again"
        if unfit := self._core.unfit(trainer):
            return f"it can use none of the nodes that are here: {unfit}"
        if self._admitted and trainer.id not in self._admitted:  # if nobody is, for lack of nodes, it waits for those
            return f"waiting for another trainer to end: {len(self._admitted)} {self._share}"
        pool, avoids = self._core.pool, trainer.avoids(self._core.pool)
        aside = sum(node in trainer.evidence.aside for node in self._free)
        if (missing := trainer.spec.min_nodes - sum(not avoids(node) for node in self._free)) <= 0:
            return "waiting for a plan"
        needs = f"waiting for {_more(missing)}" if self._has_nodes else f"waiting for {node_count(missing)}"
        there, can = (trainer.room(pool), " that it can use") if trainer.unfit_types(pool) else (pool.usable, "")
        if self._has_nodes and trainer.spec.min_nodes > there:
            needs += f": it needs {trainer.spec.min_nodes}, and the pool has {there}{can}"
        without = f"{aside} free node{'' if aside == 1 else 's'} set aside for it (pilot nodes)" if aside else ""
        busy = [f"{node} is free once {closes} has closed" for node, closes in self._busy[:NODES_NAMED]]
        return "; ".join(filter(None, [needs, without, *busy, _queue(self._keeper), self._keeper.held_back]))

    def _starting(self, trainer: Trainer, *, more: bool = False) -> str:
        """Its script is running but has not reached its training yet."""
        places = [(trainer.id, node) for node in trainer.workers if not trainer.ready_on(node)]
        since_s = [self._monitor.starting_s[place] for place in places if place in self._monitor.starting_s]
        if not since_s:
            return ""
        which = _more(len(since_s)) if more else node_count(len(since_s))
        return f"importing and setting up on {which} for {duration(self._monitor.now_s - min(since_s))}"


def _queue(keeper: KeeperStatus) -> str:
    """The time that our jobs have been queued, and their expected start; "" if none is queued."""
    if keeper.waited_s is None:
        return ""
    waited = f"in the queue for {duration(keeper.waited_s)}"
    return ", ".join(filter(None, [waited, expected_start(keeper.scheduler, keeper.expected_unix_s)]))


def _after_loop(trainer: Trainer, monitor: Monitor) -> str:
    """A line for each node where the script of a finished trainer runs on after the loop, or something keeps it."""
    alone = {node: worker.alone_s for node, worker in trainer.workers.items() if worker.alone_s}
    record = monitor.trainers.get(trainer.id)
    holds = record.holds if record is not None else {}
    return "; ".join(
        f"{holds.get(node) or f'its script runs on after the loop on {node}'}, for up to {duration(seconds)};"
        f" pilot cancel {trainer.id} ends it"
        for node, seconds in alone.items()
    )


def _unread(trainer: Trainer) -> str:
    return f"its state could not be loaded: {trainer.unread.reason}; " if trainer.unread is not None else ""


def _joining(trainer: Trainer) -> str:
    if trainer.forming is None:
        return ""
    nodes = len(trainer.forming.members)
    return f"its {node_count(nodes)} are connecting to each other" if nodes > 1 else "its node is about to train"


def _paused(trainer: Trainer) -> str:
    if trainer.writing and trainer.failed_writes:
        return f"writing a checkpoint, which has failed {trainer.failed_writes} of {counted(WRITES_TRIED, 'time')}"
    if trainer.writing:
        return "writing a checkpoint"
    missing = trainer.spec.min_nodes - len(trainer.target)
    return f"waiting for {_more(missing)}; its state is in memory" if trainer.parked else ""


def _more(nodes: int) -> str:
    return f"{nodes} more node{'' if nodes == 1 else 's'}"


def remarks(trainer: Trainer, monitor: Monitor) -> list[str]:
    """Remarks about ``trainer`` for its user: those of the monitor, then its present troubles."""
    return [*monitor.trainers[trainer.id].remarks, *troubles(trainer, monitor)]


def troubles(trainer: Trainer, monitor: Monitor) -> list[str]:
    """What is wrong with ``trainer`` now."""
    record, stays = monitor.trainers[trainer.id], trainer.stays_at()
    grows_no_more = stays is not None and (trainer.refusal or trainer.differs) and trainer.open
    refused = [stays[1]] if stays is not None and grows_no_more else []
    now_s = monitor.now_s
    return [
        *filter(None, [record.failed_checkpoint]),
        *(record.holds.values() if trainer.open else ()),
        *refused,
        *_dying(trainer, now_s),
        *_quiet(trainer, record, now_s),
        *_slow_to_start(trainer, monitor),
    ]


def _dying(trainer: Trainer, now_s: float) -> list[str]:
    """Between two deaths it makes steps, so it goes on each time: without a word nobody would know what it loses."""
    deaths = trainer.evidence.deaths.items() if trainer.open else ()
    lately = {node: sum(now_s - at_s < DEATHS_WITHIN_S for at_s in times) for node, times in deaths}
    if sum(lately.values()) < DEATHS_ALLOWED:
        return []
    most = sorted(lately, key=lambda node: -lately[node])[:NODES_NAMED]
    return [
        f"its training processes have died {sum(lately.values())} times within {DEATHS_WITHIN_S / 60:.0f} minutes"
        f" ({', '.join(f'{lately[node]} on {node}' for node in most)}); pilot events --trainer {trainer.id} tells how"
    ]


def _quiet(trainer: Trainer, record: TrainerRecord, now_s: float) -> list[str]:
    if not trainer.open or not record.nodes or record.started_s is None:
        return []
    quiet_s = now_s - (record.progress_s if record.progress_s is not None else record.started_s)
    if quiet_s < QUIET_S:
        return []
    return [f"it is training on {node_count(record.nodes)} but has reported no progress for {duration(quiet_s)}"]


def _slow_to_start(trainer: Trainer, monitor: Monitor) -> list[str]:
    waited_s = {
        node: monitor.now_s - monitor.starting_s.get((trainer.id, node), monitor.now_s)
        for node in trainer.workers
        if not trainer.ready_on(node)
    }
    return [
        f"its script has run for {duration(seconds)} on {node} without reaching session.epochs"
        for node, seconds in waited_s.items()
        if seconds >= QUIET_S
    ]
