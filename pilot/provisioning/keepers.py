"""The keepers of a pool: one for each type of nodes that its site names, each with its own queue, limits and pauses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pilot.protocol.pool_status import KeeperStatus
from pilot.provisioning.keeper import Keeper

_SUMS = ("wanted_nodes", "pending", "running", "leaving", "suspended", "planned_nodes")
_TEXTS = ("waits_for", "trouble", "held_back")


@dataclass(frozen=True, slots=True)
class Keepers:
    """Passes calls on to the keepers ``by_type``; a site without types has one, by "". Each job is known to one of
    them, and the others ignore it. See :class:`Keeper`.
    """

    by_type: Mapping[str, Keeper]

    @property
    def answers(self) -> bool:
        """Whether the scheduler answered the last poll of each."""
        return all(keeper.answers for keeper in self._each())

    def want(self, nodes: Mapping[str, int], **of_all: Any) -> None:
        """Keep pilots for so many ``nodes`` of each type from now on."""
        for name, keeper in self.by_type.items():
            keeper.want(nodes.get(name, 0), **of_all)

    def registered(self, job: str, restart: int = 0) -> None:
        """The agent of ``job`` is in the pool."""
        for keeper in self._each():
            keeper.registered(job, restart)

    def noticed(self, job: str, cause: str) -> None:
        """The agent of ``job`` is leaving, because of ``cause``."""
        for keeper in self._each():
            keeper.noticed(job, cause)

    def left(self, job: str) -> None:
        """The agent of ``job`` has left the pool."""
        for keeper in self._each():
            keeper.left(job)

    def end_s(self, job: str) -> float | None:
        """When the nodes of ``job`` will have left (Unix time); None: not known."""
        return next((end_s for keeper in self._each() if (end_s := keeper.end_s(job)) is not None), None)

    def clear(self, node: str) -> None:
        """Submit pilots to ``node`` again."""
        for keeper in self._each():
            keeper.clear(node)

    async def run(self) -> None:
        """Run all until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for keeper in self._each():
                tasks.create_task(keeper.run())

    async def down(self, limit_s: float) -> list[str]:
        """Cancel every job of each; returns the jobs left after ``limit_s``."""
        left: Iterable[list[str]] = await asyncio.gather(*(keeper.down(limit_s) for keeper in self._each()))
        return [job for jobs in left for job in jobs]

    def statuses(self) -> list[KeeperStatus]:
        """The status of each."""
        return [msgspec.structs.replace(keeper.status(), type=name) for name, keeper in self.by_type.items()]

    def status(self) -> KeeperStatus:
        """The status of all together; where there are several, texts begin with a type."""
        first, *others = each = self.statuses()
        if not others:
            return first
        idle = [status.idle_nodes for status in each if status.idle_nodes is not None]
        sums: dict[str, Any] = {name: sum(getattr(status, name) for status in each) for name in _SUMS}
        texts: dict[str, Any] = {name: "; ".join(_with_types(each, name)) for name in _TEXTS}
        return KeeperStatus(
            scheduler=first.scheduler,
            **sums,
            **texts,
            waited_s=max((s.waited_s for s in each if s.waited_s is not None), default=None),
            expected_unix_s=min((s.expected_unix_s for s in each if s.expected_unix_s is not None), default=None),
            others=max(status.others for status in each),
            idle_nodes=sum(idle) if len(idle) == len(each) else None,
            endings=dict(sum((Counter(status.endings) for status in each), Counter())),
            set_aside=[aside for status in each for aside in status.set_aside],
        )

    def _each(self) -> Iterator[Keeper]:
        return iter(self.by_type.values())


def _with_types(each: Iterable[KeeperStatus], text: str) -> Iterator[str]:
    return (f"{status.type}: {getattr(status, text)}" for status in each if getattr(status, text))
