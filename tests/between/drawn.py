"""Plays, drawn from seeds: what happens to the nodes of a trainer, and in which phase."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

IN_A_STEP = ("batch", "backward", "step", "sum", "settle")
BETWEEN_STEPS = ("gather", "evaluate", "end of epoch", "save")
IN_A_START = ("start", "connect", "share", "give", "take")
IN_A_LOSS = "abandon"
WITHOUT_GROUPS = {"connect": "start", "abandon": ""}
"""What takes the place of phases that there are only with process groups."""
AT_THE_END = "finish"
VICTIMS = {"give": 0, "take": -1}
"""Of a group with a newcomer, which is last, the first node gives it the state."""

DEATHS = ("kill node", "kill node", "kill worker", "kill worker", "kill rank", "kill all")
STOPS = ("stop worker", "stop rank")
CUTS = ("cut", "cut out", "cut in", "cut pair")
MOMENTS = ("stop for a moment", "cut for a moment")
LASTING = (*STOPS, *CUTS)
CHANGES = ("join", "leave", "again", "pause")


@dataclass(frozen=True)
class Act:
    """What happens: the coordinator orders a change first (``order``, "": none). Then the worker number ``victim``
    comes to ``phase`` ("": none), having been there ``skip`` times, and holds; or ``delay_s`` pass. Then the ``deed``
    is done to it, its node or its rank process; if ``late``, ``delay_s`` after the worker goes on. The coordinator
    learns of a death after ``reaction_s``, and of what lasts by reports of stalls: then the node is killed, or if it
    ``returns``, the fault is undone and it is in the next group again. If it is ``soon``, what happened before need
    not be over.
    """

    order: str = ""
    phase: str = ""
    skip: int = 0
    victim: int = 0
    delay_s: float = 0.0
    late: bool = False
    deed: str = ""
    reaction_s: float = 0.0
    returns: bool = False
    soon: bool = False

    def __str__(self) -> str:
        where = f"in {self.phase}" if self.phase else f"after {self.delay_s:.2f} s"
        deed = self.deed and f"{self.deed} {self.victim}"
        parts = ["soon" * self.soon, self.order, where, deed, "late" * self.late]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Play:
    """So many ``nodes`` of ``per_node`` processes train a model of ``width``, with a state that is larger by
    ``ballast`` numbers; ``spares`` wait until they join.
    """

    seed: int
    nodes: int
    per_node: int
    width: int
    ballast: int
    checkpoints_s: float
    acts: tuple[Act, ...]

    @property
    def spares(self) -> int:
        return sum(act.order == "join" for act in self.acts)


def drawn(seed: int, *, networks: bool = True, groups: bool = True) -> Play:
    """Return the play of a seed; ``networks``: nodes have networks that can be cut; ``groups``: they are connected by
    process groups.
    """
    dice = random.Random(seed)
    per_node = dice.choice((1, 1, 1, 1, 2))
    nodes = dice.choice((2, 2, 3, 3, 4)) if per_node == 1 else 2
    width, ballast = dice.choice((16, 16, 2000)), dice.choice((0, 0, 1_000_000))
    acts = [act for _ in range(dice.randrange(2, 4)) for act in _acts(dice, networks)]
    if not groups:
        acts = [replace(act, phase=WITHOUT_GROUPS.get(act.phase, act.phase)) for act in acts]
    if dice.random() < 0.25:
        acts.append(_deed(dice, networks, Act(phase=AT_THE_END)))
    saves = any(act.phase == "save" for act in acts)
    checkpoints_s = 0.15 if saves else dice.choice((0.4, 1e9))
    return Play(seed, nodes, per_node, width, ballast, checkpoints_s, tuple(acts))


def _acts(dice: random.Random, networks: bool) -> list[Act]:
    """Return an act, and perhaps another one on top of it."""
    acts = [_act(dice, networks)]
    if dice.random() < 0.3:
        phase = dice.choice(("", IN_A_LOSS, "start", "connect"))
        delay_s = 0.0 if phase else dice.uniform(0.0, 0.8)
        acts.append(Act(phase=phase, victim=dice.randrange(8), delay_s=delay_s, deed=dice.choice(DEATHS), soon=True))
    return acts


def _act(dice: random.Random, networks: bool) -> Act:
    kind = dice.choices(("step", "between", "start", "moment", "order", "during"), (5, 4, 4, 2, 2, 4))[0]
    order = dice.choice(CHANGES)
    match kind:
        case "step":
            return _deed(dice, networks, Act(phase=dice.choice(IN_A_STEP), skip=dice.randrange(4)))
        case "between":
            return _deed(dice, networks, Act(phase=dice.choice(BETWEEN_STEPS), skip=dice.randrange(2)))
        case "start":
            phase = dice.choice(IN_A_START)
            return _deed(dice, networks, Act(order="join" if phase in VICTIMS else order, phase=phase))
        case "moment":
            return _deed(dice, networks, Act(delay_s=dice.uniform(0.0, 0.5)))
        case "during":  # a group takes about this long to form
            return _deed(dice, networks, Act(order=order, delay_s=dice.uniform(0.0, 1.2)))
        case _:
            return Act(order=order)


def _deed(dice: random.Random, networks: bool, act: Act) -> Act:
    kinds = [(DEATHS, 5), (STOPS, 4), (MOMENTS[:1], 1)]
    if networks:
        kinds = [(DEATHS, 5), (STOPS, 3), (CUTS, 4), (MOMENTS, 1)]
    deed = dice.choice(dice.choices(*zip(*kinds, strict=True))[0])
    late = bool(act.phase) and dice.random() < 0.4
    return Act(
        order=act.order,
        phase=act.phase,
        skip=act.skip,
        victim=VICTIMS.get(act.phase, dice.randrange(8)),
        delay_s=dice.uniform(0.0, 0.03) if late else act.delay_s,
        late=late,
        deed=deed,
        reaction_s=dice.choice((0.0, dice.uniform(0.0, 0.4))),
        returns=deed in LASTING and dice.random() < 0.4,
    )
