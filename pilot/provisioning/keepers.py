"""The keepers of a pool: one for each type of nodes that its site names, each with its own queue, limits and pauses."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from pilot.protocol.pool_status import KeeperStatus
from pilot.provisioning.keeper import Keeper

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Keepers:
    """The keepers ``by_type``; a site without types has one, by ""."""

    by_type: Mapping[str, Keeper]

    def each(self, call: Callable[[Keeper], T]) -> list[T]:
        """``call`` all of them. Each job is known to one, and the others ignore it."""
        return [call(keeper) for keeper in self.by_type.values()]

    def end_s(self, job: str) -> float | None:
        """When the nodes of ``job`` will have left (Unix time); None: not known."""
        known = self.each(lambda keeper: keeper.end_s(job))
        return next((end_s for end_s in known if end_s is not None), None)

    async def run(self) -> None:
        """Run all until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self.each(lambda keeper: tasks.create_task(keeper.run()))

    async def down(self, limit_s: float) -> list[str]:
        """Cancel every job of each; returns the jobs left after ``limit_s``."""
        left: list[list[str]] = await asyncio.gather(*self.each(lambda keeper: keeper.down(limit_s)))
        return [job for jobs in left for job in jobs]

    def statuses(self) -> list[KeeperStatus]:
        """The status of each."""
        return [msgspec.structs.replace(keeper.status(), type=name) for name, keeper in self.by_type.items()]

    def status(self) -> KeeperStatus:
        """The status of all together: sums; the longest wait; texts with their types."""
        first, *others = each = self.statuses()
        if not others:
            return first
        fields = (field for field in KeeperStatus.__struct_fields__ if field not in ("scheduler", "type"))
        together = {field: _together([(status.type, getattr(status, field)) for status in each]) for field in fields}
        waits = [status.expected_unix_s for status in each if status.expected_unix_s is not None]
        return KeeperStatus(**together | {"scheduler": first.scheduler, "expected_unix_s": min(waits, default=None)})


def _together(values: Sequence[tuple[str, Any]]) -> Any:
    """The values of several types as one."""
    known = [value for _, value in values if value is not None]
    match known:
        case [str(), *_]:
            return "; ".join(f"{name}: {text}" for name, text in values if text)
        case [dict(), *_]:
            return dict(sum(map(Counter, known), Counter()))
        case [list(), *_]:
            return [item for items in known for item in items]
        case [float(), *_]:
            return max(known)
    return sum(known) if known else None
