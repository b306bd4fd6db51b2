"""Pilots that fail: what is told about them, and whether to pause submissions or to keep pilots away from nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from launchers.steps import EXCLUDING
from pilot.protocol.pool_status import SetAsideStatus
from pilot.provisioning.last_words import cause
from pilot.provisioning.nodes_aside import NodesAside, Run
from pilot.provisioning.retry import Retry, Troubles
from pilot.site.site import Site


@dataclass(slots=True)
class Failures:
    """The failures of one pool's pilots. ``backoff`` is the pause between submissions after failures."""

    site: Site
    troubles: Troubles
    backoff: Retry
    nodes: NodesAside = field(init=False)
    _causes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.nodes = NodesAside(self.site.nodes_per_pilot)

    def judge(self, now_s: float, joined: Sequence[Run], failed: Sequence[Run]) -> None:
        """Take the pilots that have joined, and those that failed since the last call."""
        newly = self.nodes.judge(now_s, joined, failed) if self.site.scheduler in EXCLUDING else []
        for node in newly:
            aside = self.nodes.aside[node]
            for_s = f"{(aside.until_s - now_s) / 60:.0f} min"
            self.troubles.tell(
                f"{node} is set aside for {for_s}: pilots join elsewhere, and one failed there: {aside.reason}"
            )
        unexplained = [run for run in failed if not self.nodes.explains(run)]
        if unexplained:
            self.backoff.tried(now_s, self.site.poll_s)
        elif newly and not self.nodes.suspects:
            self.over()
        for run in unexplained:
            if (what := cause(run.reason, run.nodes)) not in self._causes:
                self._causes.add(what)
                where = f" on {', '.join(sorted(run.nodes))}" if run.nodes else ""
                self.troubles.set("pilots", f"a pilot failed{where}: {run.reason}")

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
        ]
