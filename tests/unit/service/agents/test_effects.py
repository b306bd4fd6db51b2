"""Commands become the messages of the table in docs/development/processes.md; late pending commands complete or end."""

from __future__ import annotations

import asyncio
import operator
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from pilot.core.commands import (
    CheckScript,
    CloseTrainer,
    Command,
    DissolveGroup,
    ExamineGroup,
    FormGroup,
    Outcome,
    PauseGroup,
    ReleaseNode,
    SetCheckpointInterval,
    Solve,
    StartWorker,
    StopWorker,
    WriteCheckpoint,
)
from pilot.core.events import (
    CheckpointWritten,
    Event,
    GroupBroken,
    PoolChanged,
    ScriptChecked,
    TrainerHeld,
    WorkerSlow,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId
from pilot.core.plan.problem import Problem
from pilot.core.trainer.proof import ProofState
from pilot.protocol import wire
from pilot.rundir.rundir import RunDir
from pilot.service.agents.effects import (
    CHECK_PATIENCE_S,
    MET_LIMIT_S,
    SLOW_S,
    STOP_LIMIT_S,
    WRITE_LIMIT_S,
    Effects,
    Overdue,
)
from pilot.service.agents.pending import Of, PendingCommands
from pilot.service.requests.launch_store import LaunchStore
from pilot.site.site import Site
from tests.unit.service.stage import LAUNCH, SPEC, UID, A, B, C, G, T

SITE = Site(
    name="s",
    scheduler="local",
    ranks_per_node=4,
    grace_s=5,
    form_timeout_s=20,
    checkpoint_interval_s=30,
    checkpoints_kept=2,
)
ENTRY = 123
WARM_UP_S = SPEC.warm_up_s
UNCHECKED = ProofState.UNCHECKED
CHECK_S = SITE.check_limit_s + CHECK_PATIENCE_S


class Bench:
    """Effects whose messages and solves are recorded; it is the driver, the solver and the sampler."""

    def __init__(self, folder: Path) -> None:
        rundir = RunDir(folder / "run")
        rundir.create()
        self.launches = LaunchStore(rundir, "pool", None)
        self.launches.add(SPEC, LAUNCH)
        self.pending = PendingCommands()
        self.sent: list[tuple[NodeId, wire.Sent]] = []
        self.entries: set[int] = set()
        self.came = asyncio.Event()
        self.solves: list[Solve] = []
        self.posted: list[Event] = []
        self.trainer = SimpleNamespace(spec=SPEC, failed_writes=0)
        self.core = SimpleNamespace(trainers={T: self.trainer}, draining=False)
        self.met: set[Of] = set()
        self.effects = Effects(SITE, self, self.launches, self, self, self.send, self.met.__contains__)

    def send(self, node: NodeId, message: wire.Sent, event: int) -> None:
        self.sent.append((node, message))
        self.entries.add(event)
        self.came.set()

    def post(self, event: Event) -> None:
        self.posted.append(event)

    def solve(self, command: Solve) -> None:
        self.solves.append(command)

    def order(self, *commands: Command, at_s: float = 0.0) -> None:
        """The core gives ``commands``, and they are performed."""
        self.pending.note(at_s, PoolChanged(), commands, ENTRY)
        for command in commands:
            self.effects.perform(command, ENTRY)

    def late(self, now_s: float) -> tuple[Event, ...]:
        """The completions of late commands, when nothing else is late."""
        overdue = self.effects.overdue(now_s)
        assert overdue == Overdue(overdue.events)
        return overdue.events


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def form(generation: int, *members: NodeId, previous: int | None = None) -> FormGroup:
    return FormGroup(T, Generation(generation), members, None if previous is None else Generation(previous), "")


AS_IT_IS = [
    StopWorker(T, A, "r"),
    WriteCheckpoint(T, A, "r"),
    SetCheckpointInterval(T, A, 7.5, "r"),
    CheckScript(T, A, "r"),
    ReleaseNode(A, "r"),
]
TO_MEMBERS = [
    PauseGroup(T, G, (A, B), "r"),
    ExamineGroup(T, G, (A, B), "r", kill=True),
    DissolveGroup(T, G, (A, B), "r"),
]
MESSAGES = [
    (form(1, A, B), [(n, wire.JoinGroup(T, 1, rank, 2)) for rank, n in enumerate((A, B))]),
    (CloseTrainer(T, Outcome.FINISHED, "r"), []),
    (StartWorker(TrainerId("past"), A, ""), []),  # the trainer ended before the decision was on the disk
    *((command, [(A, command)]) for command in AS_IT_IS),
    *((command, [(n, command) for n in command.members]) for command in TO_MEMBERS),
]


@pytest.mark.parametrize(("command", "messages"), MESSAGES, ids=lambda v: type(v).__name__)
def test_messages(bench: Bench, command: Command, messages: list[tuple[NodeId, wire.Sent]]) -> None:
    bench.order(command)
    assert bench.sent == messages
    assert bench.entries == ({ENTRY} if messages else set()), "each names the journal entry that caused it"


def test_members_join_and_the_other_ranks_leave(bench: Bench) -> None:
    bench.order(form(1, A, B))
    bench.sent.clear()
    bench.order(form(2, C, A, previous=1))
    joined = [(C, wire.JoinGroup(T, 2, 0, 2)), (A, wire.JoinGroup(T, 2, 1, 2))]
    assert bench.sent == [*joined, (B, wire.LeaveGroup(T, 2))]


def test_a_solve_goes_to_the_solver(bench: Bench) -> None:
    command = Solve(PlanId(1), Problem(0, 1.0, ()), "")
    bench.order(command)
    assert bench.solves == [command]


def test_a_worker_is_started_as_it_was_submitted(bench: Bench, tmp_path: Path) -> None:
    bench.order(StartWorker(T, A, ""))
    folder = str(tmp_path / "run" / "trainers" / "t-01234567")
    order = wire.StartWorker(T, UID, folder, LAUNCH, 30.0, 2, patience_s=300.0, ranks=4)
    assert bench.sent == [(A, order)]
    assert order.between_nodes == "mpi"
    bench.launches.change(SPEC, replace(LAUNCH, checkpoints_kept=7, umask=0o022, between_nodes="gloo"))
    bench.order(StartWorker(T, A, ""))
    (_, order) = bench.sent[-1]
    chosen = order.checkpoints_kept, order.launch.umask, order.between_nodes
    assert chosen == (7, 0o022, "gloo"), "the user's choices"


def test_nodes_sum_as_the_site_says_unless_the_user_chose(bench: Bench) -> None:
    bench.effects.site = SITE.replace(between_nodes="gloo")
    for chosen in (None, "mpi"):
        bench.launches.change(SPEC, replace(LAUNCH, between_nodes=chosen))
        bench.order(StartWorker(T, A, ""))
    assert [order.between_nodes for _, order in bench.sent] == ["gloo", "mpi"]


def test_a_trainer_whose_submission_cannot_be_read_is_held(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "run" / "trainers" / "t-01234567" / "spec.json"
    spec = file.read_bytes()
    bench.effects.launches = LaunchStore(RunDir(tmp_path / "run"), "pool", None)
    file.write_text("damage")
    bench.order(StartWorker(T, A, ""))
    assert bench.sent == []
    [held] = bench.posted
    assert isinstance(held, TrainerHeld) and held.trainer == T
    assert str(file) in held.reason
    file.write_bytes(spec)
    bench.order(StartWorker(T, A, ""))
    assert isinstance(bench.sent[0][1], wire.StartWorker)


LATE = [
    (form(1, A), 20.0, GroupBroken(T, G, "not formed within 20 s")),
    (PauseGroup(T, G, (A,), ""), 20.0, GroupBroken(T, G, "not paused within 20 s")),
    (WriteCheckpoint(T, B, ""), WRITE_LIMIT_S, CheckpointWritten(T, B, 0, f"not written within {WRITE_LIMIT_S:g} s")),
    (CheckScript(T, A, ""), CHECK_S, ScriptChecked(T, A, UNCHECKED, f"its node has not answered within {CHECK_S:g} s")),
    (StartWorker(T, A, ""), SLOW_S, WorkerSlow(T, A)),
]


@pytest.mark.parametrize(("command", "limit_s", "completion"), LATE, ids=lambda v: type(v).__name__)
def test_a_late_command_is_completed_once(bench: Bench, command: Command, limit_s: float, completion: Event) -> None:
    for began_s in (5.0, 5000.0):
        bench.order(command, at_s=began_s)
        assert bench.late(began_s + limit_s) == ()
        assert bench.late(began_s + limit_s + 1) == (completion,)
        bench.pending.note(began_s + limit_s + 1, completion, [])
        assert bench.late(began_s + limit_s + 2) == ()


def test_members_that_have_found_each_other_may_be_in_a_long_step_or_have_a_large_state(bench: Bench) -> None:
    bench.order(form(1, A))
    bench.met.add((T, G))
    assert bench.late(MET_LIMIT_S) == ()
    assert bench.late(MET_LIMIT_S + 1) == (GroupBroken(T, G, f"not formed within {MET_LIMIT_S:g} s"),)


def test_a_checkpoint_that_failed_is_tried_again_after_a_pause_if_it_is_still_wanted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilot.service.agents.effects.WRITE_AGAIN_S", (0.001, 0.02))
    pauses = []

    async def try_again() -> None:
        for bench.trainer.failed_writes in range(9):
            began_s = time.monotonic()
            bench.order(WriteCheckpoint(T, A, ""))
            assert bench.came.is_set() == (bench.trainer.failed_writes == 0)
            await asyncio.wait_for(bench.came.wait(), 10)
            bench.came.clear()
            pauses.append(time.monotonic() - began_s)
        bench.order(WriteCheckpoint(T, A, ""), StopWorker(T, A, ""))
        bench.came.clear()
        bench.order(WriteCheckpoint(T, B, ""))
        await asyncio.wait_for(bench.came.wait(), 10)

    asyncio.run(try_again())
    least = (0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02)
    assert all(map(operator.ge, pauses, least)), pauses
    assert [node for node, message in bench.sent if isinstance(message, WriteCheckpoint)] == [A] * 9 + [B]


def test_a_worker_that_does_not_get_warm_is_ended_once_and_then_its_node_is_given_up(bench: Bench) -> None:
    stop = StopWorker(T, A, f"its training loop did not begin within {WARM_UP_S:g} s (--warm-up-s)")
    bench.order(StartWorker(T, A, ""))
    bench.pending.note(SLOW_S, WorkerSlow(T, A), [])
    bench.sent.clear()
    for now_s, late in (
        (WARM_UP_S, Overdue()),
        (WARM_UP_S + 1, Overdue(stops=(stop,))),
        (WARM_UP_S + 1, Overdue(stops=(stop,))),  # asking changes nothing
    ):
        assert bench.effects.overdue(now_s) == late
    assert bench.sent == []
    bench.effects.perform(stop)
    assert bench.sent == [(A, stop)]
    assert bench.effects.overdue(WARM_UP_S + 2) == Overdue()
    late = bench.effects.overdue(WARM_UP_S + STOP_LIMIT_S + SITE.grace_s + 1)
    assert late == Overdue(hopeless=((A, f"{T}'s process could not be ended within 65 s"),))
    bench.order(StartWorker(T, A, ""), at_s=WARM_UP_S + 2)
    bench.pending.note(WARM_UP_S + 3, WorkerSlow(T, A), [])
    assert bench.effects.overdue(2 * WARM_UP_S) == Overdue(), "it has its time anew"
    assert bench.effects.overdue(2 * WARM_UP_S + 3) == Overdue(stops=(stop,))


def test_a_node_on_which_a_worker_cannot_be_ended_is_given_up(bench: Bench) -> None:
    bench.order(StopWorker(T, A, ""))
    assert bench.effects.overdue(STOP_LIMIT_S + SITE.grace_s) == Overdue()
    [(node, _)] = bench.effects.overdue(STOP_LIMIT_S + SITE.grace_s + 1).hopeless
    assert node == A
