"""Pilots that fail: what is told about them, and whether to pause submissions or to keep pilots away from nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from launchers.steps import EXCLUDING
from pilot.protocol.pool_status import SetAsideStatus
from pilot.provisioning.last_words import cause
from pilot.provisioning.nodes_aside import NodesAside, Run
from pilot.provisioning.retry import LONGEST_PAUSE_S, Retry, Troubles
from pilot.site.site import Site

SICK_POLLS = 4
"""Where pilots cannot be kept from nodes on which they fail, the pause after such failures is at most this many polls:
the other nodes' pilots are to be replaced."""


@dataclass(slots=True)
class Failures:
    """The failures of one pool's pilots. ``backoff`` is the pause between submissions after failures."""

    site: Site
    troubles: Troubles
    backoff: Retry
    nodes: NodesAside = field(init=False)
    _excludes: bool = field(init=False)
    _causes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nodes = NodesAside(self.site.nodes_per_pilot)
        self._excludes = self.site.scheduler in EXCLUDING

    def judge(self, now_s: float, joined: Sequence[Run], failed: Sequence[Run]) -> None:
        """Take the pilots that have joined, and those that failed since the last call."""
        newly = self.nodes.judge(now_s, joined, failed)
        for node in newly:
            aside = self.nodes.aside[node]
            what = f"is set aside for {(aside.until_s - now_s) / 60:.0f} min"
            if not self._excludes:
                what = f"cannot be set aside, as {self.site.scheduler} has no option for that"
            self.troubles.tell(f"{node} {what}: pilots join elsewhere, and one failed there: {aside.reason}")
        unexplained = [run for run in failed if not (self._excludes and self.nodes.explains(run))]
        if unexplained:
            sick = all(map(self.nodes.blames, unexplained))
            most_s = min(LONGEST_PAUSE_S, SICK_POLLS * self.site.poll_s) if sick else LONGEST_PAUSE_S
            self.backoff.tried(now_s, self.site.poll_s, most_s)
        elif newly and not self.nodes.suspects:
            self.over()
        for run in unexplained:
            if (what := cause(run.reason, run.nodes)) not in self._causes:
                self._causes.add(what)
                where = f" on {', '.join(sorted(run.nodes))}" if run.nodes else ""
                self.troubles.set("pilots", f"a pilot failed{where}: {run.reason}")

    @property
    def excluded(self) -> frozenset[str]:
        """The nodes from which the scheduler is to keep pilots."""
        return frozenset(self.nodes.aside) if self._excludes else frozenset()

    def over(self) -> None:
        """Pilots work."""
        self.backoff.worked()
        self._causes.clear()
        self.troubles.set("pilots", "")

    def set_aside(self, now_s: float) -> list[SetAsideStatus]:
        """The nodes set aside, for users."""
        return [
            SetAsideStatus(
                node=node,
                trainer=None,
                left_s=max(0.0, aside.until_s - now_s),
                reason=f"a pilot failed there: {aside.reason}",
            )
            for node, aside in self.nodes.aside.items()
            if node in self.excluded
        ]
