"""The core's tables match its behaviour, checked on all transcripts and hundreds of random event sequences.

In both directions: everything that happens is in a table, and everything in a table happens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

import pytest

from pilot.core.commands import Command, Outcome, Solve, StartWorker, StopWorker
from pilot.core.coordinator import Coordinator
from pilot.core.events import DrainRequested, Event, GroupBroken, TrainerCancelled, TrainerResumed
from pilot.core.ids import TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.study.events import StudySubmitted
from pilot.core.trainer import reconcile
from pilot.core.trainer.reconcile import Question, Rule
from pilot.core.trainer.trainer import Phase, WorkerPhase
from tests.lifecycle import EFFECTS, TRAINER_CHANGES, WORKER_CHANGES, PhaseChange
from tests.property import test_node_types, test_studies
from tests.property.test_core import ACTIONS, CODE, PROFILES, PROOFS, SICKNESS, USERS
from tests.property.world import World, generous_plan
from tests.transcripts import test_transcripts

SEEDS = range(400)
WEATHERS = (
    [*ACTIONS, "break", "raise", "drain"],
    ["join", "submit", "answer", "answer", "answer", "break", "stall", "fail", "cancel"],
    ["join", "submit", "answer", "answer", "answer", "answer", "raise", "lose", "notice", "fail", "finish"],
)
WILFUL = ["join", "submit", "answer", "answer", "answer", "answer", "raise", "die", "drain", "lose"]
WILFUL += ["cancel", "step", *USERS]
SPENT = ["join", "submit bounded", "submit", "answer", "answer", "answer", "answer", "answer", "wait", "lose"]
SPENT += ["lose", "die", "hold", "resume"]
STUDIES = [*test_studies.ACTIONS, "submit study", "submit study"]
ILL = ["join", "submit", "answer", "answer", "answer", "answer", "step", "break", *SICKNESS]
PROVED = [*PROOFS, "join", "join", *5 * ["answer"], "lose", "die", "fail", "step", "resume"]
EDITED = ["join", "submit", "answer", "answer", "answer", "answer", "lose", "fail", *CODE]
RARE = {
    (before, after, cause)
    for before, after, causes in (
        (Phase.STARTING, Phase.QUEUED, "WorkerExited"),
        (Phase.RUNNING, Phase.QUEUED, "WorkerExited"),
        (Phase.RUNNING, Phase.STARTING, "PoolChanged"),
        (Phase.PAUSED, Phase.STARTING, "WorkerExited GroupBroken"),
        (Phase.PAUSED, Phase.QUEUED, "WorkerExited TrainerHeld BudgetDue"),
        (Phase.RUNNING, Phase.STOPPED, "WorkerExited"),
        (Phase.PAUSED, Phase.STOPPED, "WorkerExited"),
        (Phase.QUEUED, Phase.STOPPED, "PoolChanged"),
        (Phase.QUEUED, Phase.CLOSING, "WorkerExited GroupBroken"),
        (Phase.PAUSED, Phase.SHELVED, "PoolChanged WorkerExited"),
        (Phase.RUNNING, Phase.SHELVED, "PoolChanged WorkerExited"),
        (Phase.STARTING, Phase.SHELVED, "WorkerExited"),
        (Phase.QUEUED, Phase.SHELVED, "TrialNotAsked WorkerExited"),
        (Phase.SHELVED, Phase.RUNNING, "GroupFormed"),
        (Phase.SHELVED, Phase.CLOSING, "TrainerCancelled"),
        (Phase.SHELVED, Phase.FAILED, "WorkerExited"),
        (Phase.PAUSED, Phase.COMPLETE, "PoolChanged WorkerExited"),
        (Phase.RUNNING, Phase.COMPLETE, "PoolChanged WorkerExited"),
        (Phase.COMPLETE, Phase.CLOSING, "TrainerCancelled"),
        (Phase.COMPLETE, Phase.CANCELLED, "TrainerCancelled"),
    )
    for cause in causes.split()
}
"""Causes that these sequences may not reach; each was seen in some of 3,000 others."""

Step = tuple[Any, Any, str]
"""Before, after, cause."""


class Seen:
    """The observed behaviour of the core."""

    def __init__(self) -> None:
        self.trainers: set[Step] = set()
        self.workers: set[Step] = set()
        self.asking: set[type] = set()
        self.rules: dict[str, set[type]] = {}

    def watched(self, rule: Rule) -> Rule:
        """``rule``, with its results recorded here."""

        def action(situation: reconcile.Situation) -> list[Command]:
            commands = rule.action(situation)
            self.rules.setdefault(rule.name, set()).update(map(type, commands))
            return commands

        return replace(rule, action=action)


class Watched(Coordinator):
    """An observed coordinator."""

    seen = Seen()

    def handle(self, now_s: float, event: Event) -> list[Command]:
        phases = {t.id: t.phase for t in self.trainers.values()}
        workers = {(t.id, n): (w, w.phase) for t in self.trainers.values() for n, w in t.workers.items()}
        commands = super().handle(now_s, event)
        self._note_trainers(phases, event)
        self._note_workers(workers, event, commands)
        if any(isinstance(command, Solve) for command in commands):
            self.seen.asking.add(type(event))
        return commands

    def _note_trainers(self, before: dict[Any, Phase], event: Event) -> None:
        for trainer in self.trainers.values():
            was = before.get(trainer.id)
            if was is not trainer.phase:
                self.seen.trainers.add((was, trainer.phase, type(event).__name__))

    def _note_workers(self, before: dict[Any, Any], event: Event, commands: list[Command]) -> None:
        given = {(type(c), c.trainer, c.node) for c in commands if isinstance(c, StartWorker | StopWorker)}
        after = {(t.id, n): w for t in self.trainers.values() for n, w in t.workers.items()}
        for key in [*before, *(k for k in after if k not in before)]:
            was, phase = before.get(key, (None, None))
            now = after.get(key)
            if was is not None and now is not was:
                self.seen.workers.add((phase, None, type(event).__name__))
                was, phase = None, None
            if now is not None and now.phase is not phase:
                kinds = [kind for kind in (StartWorker, StopWorker) if (kind, *key) in given]
                self.seen.workers.add((phase, now.phase, (kinds or [type(event)])[0].__name__))


def rough(world: World, action: str, number: int) -> None:
    """Random events in the world; more kinds than :func:`act` has."""
    rng = random.Random(number)
    trainers = [t for t in world.core.trainers.values() if t.open]
    match action:
        case "drain":
            if number % 8 == 0:
                world.send(DrainRequested())
        case "break":
            if groups := [(t.id, group.generation) for t in trainers for group in t.groups]:
                world.send(GroupBroken(*rng.choice(groups), "mpiexec died"))
        case "submit study":
            name, world.space = test_studies.NAMES[number % 2], number % 4
            if name not in world.core.studies:
                world.send(StudySubmitted(test_studies.study(name, trials=2 + number % 5, deadline_s=number / 64)))
        case _:
            test_studies.happen(world, action, number)


@pytest.fixture(scope="module")
def seen() -> Iterator[Seen]:
    """The behaviour seen in all transcripts and in random sequences."""
    watched = Seen()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Watched, "seen", watched)
        patch.setattr("tests.property.world.Coordinator", Watched)
        patch.setattr(test_transcripts, "Coordinator", Watched)
        questions = [Question(q.asked, tuple(map(watched.watched, q.rules))) for q in reconcile.QUESTIONS]
        patch.setattr(reconcile, "QUESTIONS", questions)
        for path in test_transcripts.FILES:
            test_transcripts.play(path.read_text())
        _spend_all()
        _come_back()
        test_node_types.one_is_slow()
        test_studies.test_the_best_go_on_and_the_others_are_shelved_with_their_state()
        for seed in SEEDS:
            kinds = [WEATHERS[seed % len(WEATHERS)]]
            kinds += [ILL, WILFUL, SPENT, STUDIES, EDITED, PROVED] if seed % 4 == 0 else []
            kinds += [[*ILL, *PROFILES, *PROFILES]] if seed % 20 == 0 else []
            for kind in kinds:
                _play(random.Random(seed), kind)
            if seed % 20 == 0:
                _play(random.Random(seed), [*ILL, *USERS], arrivals_s=5.0)
        yield watched


def _play(rng: random.Random, actions: list[str], arrivals_s: float = 0.0) -> None:
    world = World(replace(World().config, arrivals_s=arrivals_s, longest_wait_s=300.0))
    for _ in range(rng.randrange(10, 150)):
        rough(world, rng.choice(actions), rng.randrange(1 << 16))
    world.settle()


def _spend_all() -> None:
    """Budgets that end in states rarely reached by chance: when all nodes are lost, and before a trainer's first
    worker.
    """
    world = World()
    world.join(1)
    first, second, third = (TrainerId(name) for name in ("first", "second", "third"))
    for trainer, pauses in ((first, False), (third, True)):
        world.submit(trainer, budget_node_hours=1.0)
        world.settle()
        world.pass_time(3600.0)
        if pauses:
            world.complete(0, generous_plan)
        world.lose(list(world.nodes))
        world.join(1)
    world.submit(second)
    world.settle()
    world.closed.remove(first)
    world.send(TrainerResumed(first, 0.5))
    world.complete(0, lambda _: Plan(PlanStatus.OPTIMAL, ((second, 0), (first, 1)), 0.0))
    world.pass_time(0.0)


def _come_back() -> None:
    """Trainers that ended early are resumed while nodes are free."""
    world = World(replace(World().config, arrivals_s=5.0))
    world.join(3)
    cancelled, failed, stopped = (TrainerId(name) for name in ("cancelled", "failed", "stopped"))
    for trainer in (cancelled, failed, stopped):
        world.submit(trainer, budget_node_hours=1.0 if trainer == stopped else None)
    world.broken_scripts.add(failed)
    world.send(TrainerCancelled(cancelled))
    world.settle()
    world.pass_time(3600.0)
    world.settle()
    assert [t.outcome for t in world.core.trainers.values()] == [Outcome.CANCELLED, Outcome.FAILED, Outcome.STOPPED]
    for trainer in (cancelled, failed, stopped):
        world.resume(trainer)


def said(changes: tuple[PhaseChange, ...]) -> set[Step]:
    return {(change.before, change.after, cause.__name__) for change in changes for cause in change.causes}


def test_phases_of_trainers_change_as_in_the_table(seen: Seen) -> None:
    assert seen.trainers - said(TRAINER_CHANGES) == set()
    assert said(TRAINER_CHANGES) - seen.trainers <= RARE
    rare = {(before, after) for before, after, _ in RARE}
    unseen = {(c.before, c.after) for c in TRAINER_CHANGES} - {(before, after) for before, after, _ in seen.trainers}
    assert unseen <= rare


def test_phases_of_workers_change_as_in_the_table(seen: Seen) -> None:
    assert seen.workers == said(WORKER_CHANGES)


def test_the_events_of_the_table_make_new_problems(seen: Seen) -> None:
    assert seen.asking == {effect.event for effect in EFFECTS if effect.asks}


def test_the_table_has_every_event_and_every_phase() -> None:
    assert sorted(effect.event.__name__ for effect in EFFECTS) == sorted(event.__name__ for event in get_args(Event))
    assert {change.after for change in TRAINER_CHANGES} == set(Phase)
    assert {change.after for change in WORKER_CHANGES} == {*WorkerPhase, None}


def test_every_rule_applies_somewhere_and_gives_its_commands(seen: Seen) -> None:
    rules = {rule.name: set(rule.gives) for question in reconcile.QUESTIONS for rule in question.rules}
    assert seen.rules == rules
