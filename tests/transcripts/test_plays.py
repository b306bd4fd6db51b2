"""Long random dialogues with the core, kept only as digests: any change in its decisions shows here first.

Each line of ``plays.digests`` is one play: its seed, then a digest of each event, its answer and what people see after
it. Transcripts and property tests say what is right; this says that something is different. If that is intended,
``PILOT_REWRITE=1 pytest tests/transcripts`` rewrites the digests.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pilot.core import events
from pilot.core.commands import ExamineGroup
from pilot.core.config import CoordinatorConfig
from pilot.core.coordinator import Coordinator
from pilot.core.curves.curve import Curve
from pilot.core.curves.measured import RescaleCosts
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.objective import OBJECTIVES
from pilot.core.plan.problem import Plan, PlanStatus, Problem
from pilot.core.pool.pool import NODE_ORDERS
from pilot.core.trainer.spec import TrainerSpec
from pilot.core.trainer.trainer import Trainer
from tests.property.test_core import ACTIONS, SICKNESS, act
from tests.property.world import Asynchronous, World, generous_plan, random_plan

NOTHING = RescaleCosts(1)
"""Measured by others in the pool."""
FILE = Path(__file__).parent / "plays.digests"
PLAYS, ACTS = 48, 160
RARE = ("cancel", "finish", "lose", "raise", "die", "fail")
"""Destructive events, drawn less often so that trainers live long enough for effects to accumulate."""


class Play(World):
    """A world with more varied trainers and reports than property tests need, in which every event is digested."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        super().__init__(
            CoordinatorConfig(
                t_fwd_s=self.rng.choice((60.0, 120.0)),
                max_parallel_trainers=self.rng.choice((2, 3, 5)),
                objective=self.rng.choice(list(OBJECTIVES.values())),
                node_order=self.rng.choice(list(NODE_ORDERS.values())),
                grace_s=self.rng.choice((0.0, 5.0, 30.0)),
                ended_kept=self.rng.choice((1, 2, 1000)),
                checkpoint_interval_s=self.rng.choice((60.0, 3000.0)),
                decide_every_s=600.0 if seed % 6 == 5 else 0.0,
                timed=seed % 4 == 3,
            )
        )
        self.digests: list[str] = []

    def send(self, event: events.Event) -> list[Any]:
        """Digested, too."""
        commands = super().send(event)
        text = described((event, commands, list(seen(self.core))))
        self.digests.append(hashlib.blake2b(text.encode(), digest_size=2).hexdigest())
        return commands

    def go(self) -> list[str]:
        """The digests of a whole play: a pool and trainers, random events, and the calm afterwards."""
        self.join(self.rng.randint(2, 8))
        for _ in range(3):
            self._submit()
        own = [self._submit, self._report, self._breaks, self._examines, self._stale, self._plan_fails, self._publishes]
        own += [self._dies_again, self._breaks_again, self._repeats, self._again, self._time]
        own += 3 * [self._starts_and_steps]
        for _ in range(ACTS):
            action = self.rng.choice([*ACTIONS, *SICKNESS])
            if self.rng.random() < 0.5:
                self.rng.choice(own)()
            elif action not in RARE or self.rng.random() < 0.3:
                act(self, action, self.rng.randrange(1 << 16))
        if self.rng.random() < 0.5:
            self._drains()
        self.settle()
        return self.digests

    def _drains(self) -> None:
        """Before everything is answered, nodes join that were on their way."""
        self.send(events.DrainRequested())
        self.join(2)
        for _ in range(10):
            self.complete(self.rng.randrange(3), generous_plan, ok=self.rng.random() < 0.8)

    def _answer(self, command: Asynchronous, plan: Callable[[Problem], Plan], ok: bool) -> events.Event:
        """As in any world, except for groups that went back to a checkpoint."""
        answer = super()._answer(command, plan, ok)
        if isinstance(answer, events.GroupFormed) and self.rng.random() < 0.3:
            step = max(0, self.core.trainers[answer.trainer].step - self.rng.randrange(9))
            self.steps[answer.trainer] = step
            return replace(answer, step=step, resumed=step)
        return answer

    def _trainer(self) -> TrainerId:
        return self.rng.choice(list(self.core.trainers))

    def _generation(self, trainer: TrainerId) -> Generation:
        """Usually the group that trains or forms."""
        core = self.core.trainers[trainer]
        groups = [g.generation for g in (core.group, core.forming) if g is not None]
        return self.rng.choice(groups) if groups and self.rng.random() < 0.9 else Generation(self.rng.randrange(4))

    def _submit(self) -> None:
        number = len(self.core.trainers) + len(self.core.past)
        low, curve = self.rng.randint(1, 3), None
        if self.rng.random() < 0.4:
            curve = Curve.of([(1, 100.0), (2, 180.0 + self.rng.randrange(40)), (4, 200.0 + self.rng.randrange(200))])
        high = low + self.rng.randrange(6)
        powers = tuple(n for n in (1, 2, 4, 8) if low <= n <= high)
        spec = TrainerSpec(
            TrainerId(f"t{number}"), low, high, curve, sizes=powers if number % 4 == 1 else (),
            fixed_curve=self.rng.random() < 0.2, rescale_up_s=self.rng.choice((20.0, 3.0)),
            priority=self.rng.choice((1.0, 2.5)), starts_after=Generation(self.rng.choice((0, 0, 7))),
        )  # fmt: skip
        self.generations[spec.trainer] = spec.starts_after
        self.send(events.TrainerSubmitted(spec))

    def _report(self) -> None:
        trainer, rng = self._trainer(), self.rng
        step = self.core.trainers[trainer].step + rng.randrange(3)
        self.steps[trainer] = max(step, self.steps.get(trainer, 0))
        rate, cost = rng.choice((None, 0.0, 80.0 + rng.randrange(60))), rng.choice((None, None, rng.random() * 9))
        generation = self._generation(trainer)
        self.send(events.Progress(trainer, generation, step, step // 20, 32 * step, samples_per_s=rate, rescale_s=cost))

    def _breaks(self) -> None:
        """Noticed first by a member, by nobody, or by an unrelated node; some members may not reach each other."""
        forming = [t.id for t in self.core.trainers.values() if t.forming is not None]
        trainer = self.rng.choice(forming) if forming else self._trainer()
        core, generation = self.core.trainers[trainer], self._generation(trainer)
        members = [n for g in (core.group, core.forming) if g is not None for n in g.members]
        first = self.rng.choice([*members, None, NodeId("elsewhere")])
        self._drop(lambda p: getattr(p, "trainer", "") == trainer and getattr(p, "generation", -1) == generation)
        pairs = list(itertools.permutations(dict.fromkeys(members), 2))
        unreached = tuple(self.rng.sample(pairs, min(len(pairs), self.rng.choice((0, 0, 1, 2, 9)))))
        self.send(events.GroupBroken(trainer, generation, "a rank process died", first, unreached))

    def _dies_again(self) -> None:
        """Members of a group die one after the other, mostly on the same node, with no step in between."""
        trainer, same = self._trainer(), self.rng.random() < 0.6
        for _ in range(self.rng.randint(2, 4)):
            self.settle()
            group = self.core.trainers[trainer].group if trainer in self.core.trainers else None
            if group is None:
                return
            self.send(self.worker_dies(trainer, group.members[0 if same else self.rng.randrange(len(group.members))]))

    def _breaks_again(self) -> None:
        """A group breaks, and so do the next ones."""
        trainer = self._trainer()
        for _ in range(self.rng.randint(2, 5)):
            self.settle()
            group = self.core.trainers[trainer].group if trainer in self.core.trainers else None
            if group is None:
                return
            self.send(events.GroupBroken(trainer, group.generation, "a rank process died"))

    def _repeats(self) -> None:
        """Stale pool events: nodes join that are here, leave that are leaving, and are lost that never existed."""
        here = tuple(self.rng.sample(self.nodes, min(2, len(self.nodes))))
        leaving = tuple(self.core.pool.leaving)[:1]
        self.send(
            events.PoolChanged(joined=here[:1], noticed=(*leaving, NodeId("elsewhere")), lost=(NodeId("elsewhere"),))
        )

    def _examines(self) -> None:
        trainer = self._trainer()
        self.stall(trainer)
        core = self.core.trainers[trainer]
        members = core.group.members if core.group is not None else (NodeId("elsewhere"),)
        kinds = self.rng.choice(([events.StallFinding.WAITS], list(events.StallFinding)))
        self._drop(lambda p: isinstance(p, ExamineGroup) and p.trainer == trainer)
        found = tuple((node, self.rng.choice(kinds)) for node in members)
        self.send(events.GroupExamined(trainer, self._generation(trainer), found))

    def _stale(self) -> None:
        """Events that come too late, twice, or from a group that no longer exists."""
        trainer, node = self._trainer(), self.rng.choice([*self.nodes, NodeId("elsewhere")])
        generation = Generation(self.rng.randrange(4))
        late: list[events.Event] = [
            events.TrainerFinished(trainer, Generation(0), 9, 9),
            events.PlanFailed(PlanId(0), "too late"),
        ]
        if not self._lives(trainer, generation):
            late += [events.GroupFormed(trainer, generation, 5), events.GroupPaused(trainer, generation, 5)]
        if (trainer, node) not in self.workers:
            late.append(events.CheckpointWritten(trainer, node, 3))
            late.append(events.WorkerExited(trainer, node, self.rng.choice(list(events.ExitCause)), "late"))
        if self.workers.get((trainer, node)) != "starting":
            late.append(events.WorkerReady(trainer, node))
        self.send(self.rng.choice(late))

    def _lives(self, trainer: TrainerId, generation: Generation) -> bool:
        core = self.core.trainers[trainer]
        return generation in [g.generation for g in (core.group, core.forming) if g is not None]

    def _plan_fails(self) -> None:
        self.send(events.PlanFailed(self.core.plan_id, "the solver died"))

    def _publishes(self) -> None:
        self.send(events.CheckpointPublished(self._trainer(), 1, self.rng.choice((0.5, 4.0, 40.0, 400.0))))

    def _again(self) -> None:
        node = self.rng.choice([*self.nodes, NodeId("elsewhere")])
        self.send(events.NodeRetried(node, self.rng.choice((None, self._trainer()))))

    def _time(self) -> None:
        self.pass_time(self.rng.choice((10.0, 600.0, 1900.0, 90000.0)))

    def _starts_and_steps(self) -> None:
        """Pending commands are answered with success, a few answers later by a resumed group, and the trainers step."""
        plan = self.rng.choice((generous_plan, lambda problem: random_plan(problem, self.rng), kept_plan))
        for _ in range(self.rng.randint(1, 12)):
            self.complete(self.rng.randrange(3), plan)
        for trainer in [t for t in self.core.trainers.values() if t.group is not None]:
            self.step(trainer.id)


def kept_plan(problem: Problem) -> Plan:
    """Nothing better is known."""
    return Plan(PlanStatus.KEPT, tuple(problem.kept().items()), 0.0)


def seen(core: Coordinator) -> Iterator[object]:
    """What people see of a pool, or planners of its trainers."""
    yield (
        core.now_s,
        list(core.past.items()),
        core.plan,
        len(core.useless()),
        core.pool.usable,
        list(core.blame.set_aside()),
    )
    for trainer in core.trainers.values():
        yield _seen_of(trainer), core.checkpoint_interval(trainer).sentence()


def _seen_of(trainer: Trainer) -> tuple[object, ...]:
    measured = trainer.measured
    up_s, down_s = (measured.rescale_s(NOTHING, up=up) for up in (True, False))
    known = (measured.curve, measured.rates, up_s, down_s, measured.wipeouts)
    stands = (
        trainer.id,
        trainer.phase.value,
        trainer.target,
        trainer.group,
        trainer.step,
        trainer.epoch,
        trainer.samples,
    )
    unsaved = trainer.failed_writes, trainer.saved
    return (*stands, unsaved, trainer.counts, trainer.refusal, trainer.reason, known)


def described(thing: object) -> str:
    """As ``repr`` without default fields: a new field then changes no play that does not use it."""
    if is_dataclass(thing):
        shown = [f"{f.name}={described(v)}" for f in fields(thing) if (v := getattr(thing, f.name)) != _default(f)]
        return f"{type(thing).__name__}({', '.join(shown)})"
    if isinstance(thing, list | tuple):
        return f"[{', '.join(map(described, thing))}]"
    if isinstance(thing, dict):
        return f"{{{', '.join(f'{described(k)}: {described(v)}' for k, v in thing.items())}}}"
    return f"{thing:.9g}" if isinstance(thing, float) else str(thing)


def _default(field: Any) -> object:
    return field.default_factory() if field.default_factory is not MISSING else field.default


@pytest.mark.parametrize("seed", range(PLAYS))
def test_play(seed: int) -> None:
    digests = Play(seed).go()
    if os.environ.get("PILOT_REWRITE"):
        _rewrite(seed, digests)
    written = FILE.read_text().splitlines()[seed].split()[1:]
    other = next((n for n, (a, b) in enumerate(zip(digests, written, strict=False)) if a != b), None)
    assert digests == written, f"play {seed} is another one from event {other} on"


def _rewrite(seed: int, digests: list[str]) -> None:
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    lines += [""] * (PLAYS - len(lines))
    lines[seed] = f"{seed} {' '.join(digests)}"
    FILE.write_text("\n".join(lines) + "\n")
