"""The run directory of a pool that is down, in which every name, metric, parameter, error and remark is hostile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from pilot.core.commands import AskTrial
from pilot.core.events import Event, ExitCause, PoolChanged, Progress, TrainerSubmitted, WorkerExited
from pilot.core.ids import NodeId, StudyId, TrainerId, TrainerUid
from pilot.core.plan.problem import Plan, Problem
from pilot.core.study.events import StudySubmitted, TrialAsked
from pilot.core.study.study import StudySpec
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir.journal import FORMAT, Header
from pilot.rundir.rundir import RunDir
from pilot.service.durability.journal_writer import JournalWriter
from pilot.service.requests.launch_store import LaunchStore
from pilot.service.requests.study_store import StudyStore
from pilot.service.settings import core_of
from pilot.submission.study_definition import Sampler, StudyDefinition
from pilot.submission.submission import LaunchSpec
from tests.property.world import Asynchronous, World

STUDY = "s"
UID = TrainerUid("5" * 32)
TRIALS = 4


class _Hostile(World):
    """Its trials' parameters have ``texts`` for names and values."""

    def __init__(self, header: Header, texts: Sequence[str]) -> None:
        self.texts = texts
        super().__init__()
        self.core = core_of(header)

    def _answer(self, command: Asynchronous, plan: Callable[[Problem], Plan], ok: bool) -> Event:
        if isinstance(command, AskTrial):
            given = tuple((text, self.texts[command.number % len(self.texts)]) for text in self.texts)
            return TrialAsked(command.study, command.number, command.spec, given)
        return super()._answer(command, plan, ok)


def build(root: Path, texts: Sequence[str]) -> None:
    """Make it in ``root``: a node and a trainer for each of ``texts``, and one study."""
    root.mkdir(mode=0o700)
    header = Header(FORMAT, "0.1.0", texts[0], 1.7e9, {}, {"name": texts[0]})
    world = _Hostile(header, texts)
    world.nodes = [NodeId(f"node {text}") for text in texts]
    world.send(PoolChanged(joined=tuple(world.nodes)))
    for text in texts:
        _train_and_fail(world, text)
    study = StudySpec(StudyId(STUDY), texts[0], True, (1, 3), TRIALS, TrainerSpec(TrainerId(STUDY), uid=UID))
    world.send(StudySubmitted(study))
    for number in range(TRIALS):
        world.settle()
        if study.trainer(number) in world.core.trainers:
            world.report(study.trainer(number), 0.1 * number)
    world.settle()
    _fail(world, next(name for name, _ in world.workers), f"ValueError: x\n=1+1{texts[0]}")
    _write(root, header, world)
    _write_study(root, study, texts)


def _train_and_fail(world: World, text: str) -> None:
    trainer = TrainerId(f"trainer {text}")
    world.send(TrainerSubmitted(replace(TrainerSpec(trainer, 1, 1), script=text)))
    world.settle()
    group = world.core.trainers[trainer].group
    assert group is not None
    for step in (1, 2, 3):
        metrics = ((text, 1.0 / step), (f"{text} 2", -1e308 * (-1) ** step))
        world.steps[trainer] = step
        world.send(Progress(trainer, group.generation, step, 0, 32 * step, metrics=metrics))
    _fail(world, trainer, f"Traceback\nValueError: {text}")


def _fail(world: World, trainer: TrainerId, detail: str) -> None:
    node = next(node for name, node in world.workers if name == trainer)
    del world.workers[trainer, node]
    world.send(WorkerExited(trainer, node, ExitCause.RAISED, detail))
    world.settle()


def _write(root: Path, header: Header, world: World) -> None:
    writer = JournalWriter.create(RunDir(root).journal, header)
    for now_s, event, commands in world.history:
        writer.decided(now_s, event, commands).result(10)
    for text in world.texts if isinstance(world, _Hostile) else ():
        writer.note(world.now_s, {"text": f"remark {text}"}).result(10)
    writer.close()


def _write_study(root: Path, study: StudySpec, texts: Sequence[str]) -> None:
    store = StudyStore(RunDir(root), LaunchStore(RunDir(root), texts[0], None))
    launch = LaunchSpec(texts[0], "", [texts[-1]], "/", "python", {})
    definition = StudyDefinition(
        name=STUDY, launch=launch, metric=texts[0], maximise=True, rungs=(1, 3), trials=TRIALS, sampler=Sampler.RANDOM
    )
    store.add(study, definition)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.RandomSampler(seed=1)
    storage = JournalStorage(JournalFileBackend(str(store.journal(study))))
    made = optuna.create_study(storage=storage, study_name=STUDY, sampler=sampler)
    made.optimize(lambda trial: sum(trial.suggest_float(text, 0.0, 1.0) for text in texts), n_trials=2 * TRIALS)
