"""Which nodes get no pilots for a while, because pilots fail there and join elsewhere. No side effects.

======================================================  ===========================================================
what is known of a node on which a pilot failed         what follows
======================================================  ===========================================================
a pilot joined on another node while that one failed    the node is set aside
pilots are there on other nodes, but joined earlier     it is set aside, unless pilots have failed on as many other
                                                        nodes since the last one joined: then the cause is not the
                                                        node, and nodes set aside by this rule are used again
no pilot is on another node                             nothing: pilots may fail everywhere
a pilot joined on it since                              its failures are forgotten
time passed                                             it is tried again; each time takes twice as long
======================================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pilot.core.growing import growing_s

NODES_TRIED = 3
"""If pilots fail on this many nodes one after the other and join nowhere, it is not the nodes."""

AGAIN_S = 600.0
"""A node that was set aside for the first time is tried again after this time."""

LONGEST_S = 86400.0


@dataclass(frozen=True, slots=True)
class Run:
    """A pilot on ``nodes``: when it was submitted, when it began, and when it joined, or failed for ``reason``."""

    nodes: frozenset[str]
    submitted_s: float
    began_s: float
    at_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Aside:
    """A node that is set aside. ``sure``: pilots joined elsewhere at the same time."""

    since_s: float
    until_s: float
    reason: str
    sure: bool


class NodesAside:
    """The nodes set aside, by name. A job has ``nodes_per_pilot`` nodes, which share its fate."""

    def __init__(self, nodes_per_pilot: int = 1) -> None:
        self.aside: dict[str, Aside] = {}
        self._failed: dict[str, Run] = {}  # the last failure on each node that is not refuted
        self._times: dict[str, int] = {}
        self._tried: set[str] = set()  # nodes with failures since a pilot joined anywhere
        self._tried_most = NODES_TRIED * nodes_per_pilot
        self._joined_s = 0.0

    def judge(self, now_s: float, joined: Sequence[Run], failed: Sequence[Run]) -> list[str]:
        """Take the pilots that have ``joined`` and are there, and those that ``failed`` since the last call; returns
        the nodes that are set aside now and were not before."""
        for node in [node for node, aside in self.aside.items() if aside.until_s <= now_s]:
            self._use(node)
        last_s = max((run.at_s for run in joined), default=0.0)
        if last_s > self._joined_s:
            self._joined_s = last_s
            self._tried.clear()
        for node, run in _by_node(failed):
            self._failed[node] = run
            if node not in self.aside:
                self._tried.add(node)
        for node, run in _by_node(joined):
            if node in self._failed and run.at_s > self._failed[node].at_s:
                self.clear(node)
        if len(self._tried) >= self._tried_most:
            for node in [node for node, aside in self.aside.items() if not aside.sure]:
                self._use(node)
        newly = [node for node in list(self._failed) if self._set_aside(now_s, node, joined)]
        for node in [node for node, run in self._failed.items() if node not in self.aside and run.at_s < last_s]:
            del self._failed[node]
        return newly

    def explains(self, failed: Run) -> bool:
        """Whether the nodes of a pilot that ``failed`` are at fault: they are set aside, and it is from before that."""
        return self.blames(failed) and all(failed.submitted_s <= self.aside[node].since_s for node in failed.nodes)

    def blames(self, failed: Run) -> bool:
        """Whether the nodes of a pilot that ``failed`` are set aside."""
        return bool(failed.nodes) and failed.nodes <= self.aside.keys()

    @property
    def suspects(self) -> bool:
        """Whether pilots failed on nodes that are not set aside."""
        return not self._failed.keys() <= self.aside.keys()

    def clear(self, node: str) -> bool:
        """Forget the failures on ``node``; returns whether it was set aside."""
        self._times.pop(node, None)
        return self._use(node)

    def _use(self, node: str) -> bool:
        self._failed.pop(node, None)
        return self.aside.pop(node, None) is not None

    def _set_aside(self, now_s: float, node: str, joined: Sequence[Run]) -> bool:
        failure, elsewhere = self._failed[node], [run for run in joined if node not in run.nodes]
        sure = any(run.at_s >= failure.began_s and run.began_s <= failure.at_s for run in elsewhere)
        likely = any(run.at_s < failure.began_s for run in elsewhere) and len(self._tried) < self._tried_most
        if node in self.aside or not (sure or likely):
            return False
        if sure:
            self._tried.discard(node)
        self._times[node] = self._times.get(node, 0) + 1
        for_s = growing_s(AGAIN_S, self._times[node] - 1, LONGEST_S)
        self.aside[node] = Aside(now_s, now_s + for_s, failure.reason, sure)
        return True


def _by_node(runs: Sequence[Run]) -> Iterator[tuple[str, Run]]:
    return ((node, run) for run in runs for node in sorted(run.nodes))
