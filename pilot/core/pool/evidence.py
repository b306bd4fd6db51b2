"""Evidence of one trainer against nodes: strikes, doubts, and the nodes that it avoids for a time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pilot.core.errors import REFUSAL
from pilot.core.ids import NodeId

STRIKES = 3
"""After this many deaths while starting, or groups that it kept from forming, a node is set aside."""


DEATHS_WITHIN_S = 1800.0
"""Deaths in groups are remembered for this long, whatever was trained in between."""


class Stage(StrEnum):
    """How far a worker had got when it failed; a failure is refuted when another node gets further."""

    START = "start"
    """It was not in a group yet. A worker that gets warm elsewhere shows that the script can start."""
    READ = "read"
    """It could not read its checkpoint. A worker that loads it elsewhere shows that it can be read."""
    RUN = "run"
    """It was in a group, or was to be. A step without it shows that the script can train."""
    JOIN = "join"
    """It computed another gradient than a node that trains. One that joins without shows that it need not."""
    RESUME = "resume"
    """Its group computed another gradient than before the resume. A step of another one shows that it need not."""


class Fault(StrEnum):
    """The fault of a failure on a node."""

    UNKNOWN = "unknown"
    NODE = "node"
    """No script can cause it."""
    SCRIPT = "script"
    """Any node would fail: the script's code was changed."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """A trainer failed on ``node``. ``strikes``: how much that counts. ``again_s``: when the node is tried again (None:
    after longer each time).
    """

    node: NodeId
    stage: Stage
    reason: str
    strikes: int = STRIKES
    fault: Fault = Fault.UNKNOWN
    again_s: float | None = None


@dataclass(frozen=True, slots=True)
class SetAside:
    """A node that gets no work until ``until_s``; then it is tried again. ``soon``: another node may do no better."""

    until_s: float
    reason: str
    soon: bool = False


def headline(reason: str) -> str:
    """The last line of a reason of several lines (a traceback, and where the log is) that describes the error."""
    lines = [line for line in reason.splitlines() if line.strip() and not line.startswith("(log: ")]
    return lines[-1].strip() if lines else "no reason was given"


@dataclass(slots=True)
class Evidence:
    """The evidence; nodes that have left are forgotten."""

    strikes: dict[NodeId, int] = field(default_factory=dict)  #: failures on a node since the trainer worked there
    #: nodes on which it failed without having worked on another one since, and how far it had got
    doubts: dict[NodeId, Stage] = field(default_factory=dict)
    aside: dict[NodeId, SetAside] = field(default_factory=dict)  #: the nodes that it avoids
    times: dict[NodeId, int] = field(default_factory=dict)  #: how often it has set each aside
    deaths: dict[NodeId, list[float]] = field(default_factory=dict)  #: when its processes in groups died on each
    #: nodes whose gradients are compared in the step after this one, and have not been yet
    joined: dict[NodeId, int] = field(default_factory=dict)

    def died(self, now_s: float, node: NodeId) -> int:
        """Its process in a group died on ``node``; returns how often that happened lately."""
        self.deaths.setdefault(node, []).append(now_s)
        lately = {n: [at_s for at_s in times if now_s - at_s < DEATHS_WITHIN_S] for n, times in self.deaths.items()}
        self.deaths = {n: times for n, times in lately.items() if times}
        return len(self.deaths[node])

    def struck(self, accusation: Accusation) -> bool:
        """Count a failure; returns whether the node should be set aside."""
        self.strikes[accusation.node] = self.strikes.get(accusation.node, 0) + accusation.strikes
        return self.strikes[accusation.node] >= STRIKES

    def doubted(self, stage: Stage, without: NodeId | None = None) -> list[NodeId]:
        """The nodes on which it failed at ``stage`` without having got further on another since; not ``without``."""
        return [node for node, at in self.doubts.items() if at is stage and node != without]

    def worked(self, on: tuple[NodeId, ...], stage: Stage) -> list[NodeId]:
        """Record that it works ``on`` these nodes, up to ``stage``; returns the nodes that this shows to have been
        at fault in earlier failures.
        """
        for node in on if stage is Stage.RUN else ():
            self.strikes.pop(node, None)
        reached = (stage, Stage.RESUME) if stage is Stage.RUN else (stage,)
        doubted = [n for n, at in self.doubts.items() if at in reached]
        settled = [n for n in doubted if n not in on]
        for node in doubted:
            del self.doubts[node]
        return settled if stage is not Stage.READ or len(settled) == 1 else []  # several: it was the file system's

    def formed(self, step: int, members: Sequence[NodeId], newcomers: Collection[NodeId]) -> None:
        """Record that a group begins at ``step``, with ``newcomers`` that are compared with others."""
        compared = {*newcomers, *self.joined}
        self.joined = {node: step for node in members if node in compared}

    def compared(self, step: int) -> tuple[NodeId, ...]:
        """The nodes whose gradients count, as the training has got to ``step``: they did not differ."""
        alike = tuple(node for node, at in self.joined.items() if step > at + 1)
        for node in alike:
            del self.joined[node]
        return alike

    def pardon(self, stage: Stage) -> None:
        """Forget the failures at ``stage``: they were no node's fault."""
        for node in self.doubted(stage):
            for known in (self.strikes, self.doubts, self.aside):
                known.pop(node, None)

    def forget(self, node: NodeId) -> None:
        """Forget the evidence against ``node``."""
        for known in (self.strikes, self.doubts, self.aside, self.times, self.deaths):
            known.pop(node, None)


TRACEBACK = "Traceback (most recent call last)"
TAIL_BYTES = 1 << 16
"""How much of a log's end is searched for the reason."""

HEAD_MAX = 200
"""The longest reason for the end of a script, in characters; the log has the rest."""


def last_words(tail: str) -> str:
    """Why a script ended, in one line, from the end of its log: the error of ours, the class and message of the last
    exception with a traceback, or the last line.
    """
    lines = tail.rstrip().splitlines()
    if is_refusal(tail):
        return lines[-1].removeprefix(REFUSAL)
    starts = [index for index, line in enumerate(lines) if TRACEBACK in line]
    return head(_exception(lines[starts[-1] :]) if starts else "".join(lines[-1:]))


def head(text: str) -> str:
    """``text`` in one line, cut to :data:`HEAD_MAX` characters."""
    line = " ".join(text.split())
    return line if len(line) <= HEAD_MAX else f"{line[: HEAD_MAX - 1]}…"


def _exception(lines: Sequence[str]) -> str:
    """The line below a traceback, which is the first that is not indented; the next one, too, if it ends in a colon.
    What precedes the traceback's title (``[rank0]: ``, or the ``| `` of a group) precedes the other lines as well.
    """
    margin = lines[0].partition(TRACEBACK)[0].removesuffix("Exception Group ").replace("+", "|")
    below = [line for line in (line.removeprefix(margin) for line in lines[1:]) if line.strip()]
    first = next((index for index, line in enumerate(below) if not line[0].isspace()), len(below) - 1)
    text = "".join(below[first : first + 1]) or lines[0]
    return f"{text} {' '.join(below[first + 1 : first + 2])}" if text.rstrip().endswith(":") else text


def is_refusal(tail: str) -> bool:
    """Whether one of our errors ended the script, rather than its own."""
    return tail.rstrip().rpartition("\n")[2].startswith(REFUSAL)
