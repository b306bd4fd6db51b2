"""What is wrong with a trainer or its pool at present, in sentences. What is over is told by ``pilot events``."""

from __future__ import annotations

from collections.abc import Iterator

from pilot.core.coordinator import Coordinator
from pilot.core.ids import NodeId, TrainerId
from pilot.core.pool.evidence import SetAside, headline
from pilot.core.trainer.budget import WARNED_AT, hours, unit
from pilot.core.trainer.trainer import Trainer
from pilot.history.monitor import Monitor
from pilot.history.words import amount, aside_words
from pilot.protocol.pool_status import KeeperStatus, SetAsideStatus
from pilot.service.requests.waiting import troubles


def set_aside(core: Coordinator, now_s: float) -> list[SetAsideStatus]:
    """The nodes that are not used for a while."""
    return [_aside(node, trainer, aside, now_s) for node, trainer, aside in core.blame.set_aside()]


def _aside(node: NodeId, trainer: TrainerId | None, aside: SetAside, now_s: float) -> SetAsideStatus:
    left_s = max(0.0, aside.until_s - now_s)
    return SetAsideStatus(node=node, trainer=trainer, left_s=left_s, reason=headline(aside.reason))


def of_pool(core: Coordinator, now_s: float, keeper: KeeperStatus) -> Iterator[str]:
    """Which nodes no trainer uses, and which get no pilots."""
    if (idle := core.idle()) is not None:
        yield idle.sentence()
    for node, aside in core.pool.aside.items():
        yield aside_words(_aside(node, None, aside, now_s))
    yield from map(aside_words, keeper.set_aside)


def of_trainer(core: Coordinator, monitor: Monitor, trainer: Trainer) -> Iterator[str]:
    """What concerns all that it has trained, its troubles, its nodes that are set aside, and its budget."""
    if trainer.open:
        record = monitor.trainers[trainer.id]
        yield from filter(None, [*record.lasting, record.delayed if trainer.group is not None else ""])
    yield from troubles(trainer, monitor)
    if trainer.open:
        for node, aside in trainer.evidence.aside.items():
            yield aside_words(_aside(node, trainer.id, aside, monitor.now_s))
        for reason in trainer.excluded.values():
            yield f"{reason}; it gets no such node until pilot resume {trainer.id}"
        yield from _budget(trainer, monitor.now_s, core.config.charge_factor)


def _budget(trainer: Trainer, now_s: float, charge_factor: float) -> Iterator[str]:
    used_s, budget_s = trainer.usage.until(now_s), trainer.usage.budget_s
    if budget_s is not None and used_s >= WARNED_AT * budget_s:
        used, budget = amount(hours(used_s, charge_factor)), amount(hours(budget_s, charge_factor))
        yield f"it has used {used} of its budget of {budget} {unit(charge_factor)}"
