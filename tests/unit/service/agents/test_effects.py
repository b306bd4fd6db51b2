"""Commands become the messages of the table in docs/processes.md; what is pending too long is completed or ended."""

from __future__ import annotations

import asyncio
import hashlib
import operator
import os
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
from pilot.core.errors import PilotError, UserError
from pilot.core.events import (
    CheckpointWritten,
    Event,
    GroupBroken,
    PoolChanged,
    ScriptChecked,
    TrainerHeld,
    WorkerReady,
    WorkerSlow,
)
from pilot.core.ids import Generation, NodeId, PlanId, TrainerId, TrainerUid
from pilot.core.plan.problem import Problem
from pilot.core.trainer.proof import ProofState
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.rundir import trainer_folder
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
from pilot.submission import script_code
from pilot.submission.submission import LaunchSpec

T, A, B, C = TrainerId("t"), NodeId("a"), NodeId("b"), NodeId("c")
SITE = Site(
    name="s",
    scheduler="local",
    ranks_per_node=4,
    grace_s=5,
    form_timeout_s=20,
    checkpoint_interval_s=30,
    checkpoints_kept=2,
)
UID = TrainerUid("0123456789abcdef" * 2)
SPEC = TrainerSpec(T, uid=UID)
HOME = "t-01234567"
ENTRY = 123
LAUNCH = LaunchSpec("/s.py", "ab12", ["--x"], "/work", "/bin/python", {"KEY": "secret"})


class Bench:
    """Effects whose messages and solves are recorded."""

    def __init__(self, folder: Path) -> None:
        rundir = RunDir(folder / "run")
        rundir.create()
        self.launches = LaunchStore(rundir, "pool", None)
        self.launches.add(SPEC, LAUNCH)
        self.pending = PendingCommands()
        self.sent: list[tuple[NodeId, wire.Message]] = []
        self.solves: list[Solve] = []
        self.posted: list[Event] = []
        self.trainer = SimpleNamespace(spec=SPEC, failed_writes=0)
        self.core = SimpleNamespace(trainers={T: self.trainer}, draining=False)
        self.met: set[Of] = set()
        self.events: list[int] = []
        self.effects = Effects(SITE, self, self.launches, self, self, self.send, self.met.__contains__)

    def send(self, node: NodeId, message: wire.Message, event: int) -> None:
        self.sent.append((node, message))
        self.events.append(event)

    def post(self, event: Event) -> None:
        self.posted.append(event)

    def solve(self, command: Solve) -> None:
        self.solves.append(command)

    def perform(self, command: object) -> None:
        raise AssertionError(command)

    def order(self, *commands: Command, at_s: float = 0.0) -> None:
        """The core gives ``commands``, and they are performed."""
        self.pending.note(at_s, PoolChanged(), commands, ENTRY)
        for command in commands:
            self.effects.perform(command, ENTRY)


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
    PauseGroup(T, Generation(1), (A, B), "r"),
    ExamineGroup(T, Generation(1), (A, B), "r", kill=True),
    DissolveGroup(T, Generation(1), (A, B), "r"),
]
MESSAGES = [
    (form(1, A, B), [(n, wire.JoinGroup(T, 1, rank, 2)) for rank, n in enumerate((A, B))]),
    (CloseTrainer(T, Outcome.FINISHED, "r"), []),
    *((command, [(A, command)]) for command in AS_IT_IS),
    *((command, [(n, command) for n in command.members]) for command in TO_MEMBERS),
]


@pytest.mark.parametrize(("command", "messages"), MESSAGES, ids=lambda v: type(v).__name__)
def test_messages(bench: Bench, command: Command, messages: list[tuple[NodeId, wire.Sent]]) -> None:
    bench.order(command)
    assert bench.sent == messages
    assert bench.events == [ENTRY] * len(messages), "each names the journal entry that caused it"


def test_no_worker_is_started_of_a_trainer_that_is_past_when_the_decision_is_on_the_disk(bench: Bench) -> None:
    bench.order(StartWorker(TrainerId("past"), A, ""))
    assert bench.sent == []


def test_a_worker_is_started_as_it_was_submitted(bench: Bench, tmp_path: Path) -> None:
    bench.order(StartWorker(T, A, ""))
    [(node, message)] = bench.sent
    assert node == A
    folder = tmp_path / "run" / "trainers" / HOME
    assert message == wire.StartWorker(T, UID, str(folder), LAUNCH, 30.0, 2, patience_s=300.0, ranks=4)
    assert (folder / "spec.json").stat().st_mode & 0o777 == 0o600
    assert {p.name for p in folder.iterdir()} == {"spec.json", "checkpoints", "logs", ".trainer_uid"}
    assert folder.with_name(T).resolve() == folder, "people type its name"


def test_its_user_says_how_many_checkpoints_it_keeps_and_who_may_read_its_files(bench: Bench) -> None:
    bench.launches.change(SPEC, replace(LAUNCH, checkpoints_kept=7, umask=0o022))
    bench.order(StartWorker(T, A, ""))
    [(_, order)] = bench.sent
    assert (order.checkpoints_kept, order.launch.umask) == (7, 0o022)
    assert bench.launches.checkpoints_kept(SPEC) == 7


def test_a_trainer_of_the_same_name_has_a_folder_of_its_own(bench: Bench) -> None:
    first, second = bench.launches.directory(SPEC), TrainerSpec(T, uid=TrainerUid("f" * 32))
    bench.launches.add(second, LAUNCH)
    assert bench.launches.shown(second).resolve() == bench.launches.directory(second) != first
    assert trainer_folder.owner_of(first) == UID
    with pytest.raises(UserError, match="is the folder of another trainer; choose another --name"):
        bench.launches.add(TrainerSpec(TrainerId(HOME), uid=UID), LAUNCH)


def test_what_was_submitted_and_cannot_be_read_back_is_told_when_it_is_needed(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "run" / "trainers" / HOME / "spec.json"
    spec = file.read_bytes()
    again = Effects(SITE, bench, LaunchStore(RunDir(tmp_path / "run"), "pool", None), bench, bench, bench.send, bool)
    file.write_text("damage")
    again.perform(StartWorker(T, A, ""))
    assert bench.sent == []
    [held] = bench.posted
    assert isinstance(held, TrainerHeld) and held.trainer == T
    assert str(file) in held.reason
    file.write_bytes(spec)
    again.perform(StartWorker(T, A, ""))
    assert isinstance(bench.sent[0][1], wire.StartWorker)


def test_a_solve_goes_to_the_solver(bench: Bench) -> None:
    command = Solve(PlanId(1), Problem(0, 1.0, ()), "")
    bench.order(command)
    assert bench.solves == [command]


def test_members_join_and_those_who_part_are_told(bench: Bench) -> None:
    bench.order(form(1, A, B))
    bench.sent.clear()
    bench.order(form(2, C, A, previous=1))
    assert bench.sent == [
        (C, wire.JoinGroup(T, 2, 0, 2)),
        (A, wire.JoinGroup(T, 2, 1, 2)),
        (B, wire.LeaveGroup(T, 2)),
    ]


def test_members_that_have_found_each_other_may_be_in_a_long_step_or_have_a_large_state(bench: Bench) -> None:
    bench.order(form(1, A))
    bench.met.add((T, Generation(1)))
    assert bench.effects.overdue(MET_LIMIT_S) == Overdue()
    late = GroupBroken(T, Generation(1), f"not formed within {MET_LIMIT_S:g} s")
    assert bench.effects.overdue(MET_LIMIT_S + 1) == Overdue((late,))


def test_what_waits_for_too_long_is_completed(bench: Bench) -> None:
    bench.order(form(1, A), WriteCheckpoint(T, B, ""))
    bench.order(PauseGroup(T, Generation(7), (A,), ""), at_s=5.0)
    assert bench.effects.overdue(20.0) == Overdue()
    assert bench.effects.overdue(20.5) == Overdue((GroupBroken(T, Generation(1), "not formed within 20 s"),))
    assert bench.effects.overdue(WRITE_LIMIT_S + 1).events == (
        GroupBroken(T, Generation(1), "not formed within 20 s"),
        GroupBroken(T, Generation(7), "not paused within 20 s"),
        CheckpointWritten(T, B, 0, f"not written within {WRITE_LIMIT_S:g} s"),
    )


def test_a_check_that_takes_too_long_leaves_the_script_unchecked(bench: Bench) -> None:
    bench.order(CheckScript(T, A, "before it grows"))
    may_s = SITE.check_limit_s + CHECK_PATIENCE_S
    assert bench.effects.overdue(may_s) == Overdue()
    [late] = bench.effects.overdue(may_s + 1).events
    assert isinstance(late, ScriptChecked)
    assert (late.trainer, late.node, late.result) == (T, A, ProofState.UNCHECKED)
    bench.pending.note(may_s + 1, late, [])
    assert bench.effects.overdue(may_s + 2) == Overdue()


def test_a_checkpoint_that_failed_is_tried_again_after_a_pause_if_it_is_still_wanted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilot.service.agents.effects.WRITE_AGAIN_S", (0.001, 0.02))
    pauses, send = [], bench.send

    async def try_again() -> None:
        sent = asyncio.Event()
        bench.effects = Effects(
            SITE, bench, bench.launches, bench, bench, lambda *said: (send(*said), sent.set())[1], bool
        )
        for bench.trainer.failed_writes in range(9):
            began_s = time.monotonic()
            bench.order(WriteCheckpoint(T, A, ""))
            assert sent.is_set() == (bench.trainer.failed_writes == 0)
            await asyncio.wait_for(sent.wait(), 10)
            sent.clear()
            pauses.append(time.monotonic() - began_s)
        bench.order(WriteCheckpoint(T, A, ""), StopWorker(T, A, ""))
        sent.clear()
        bench.order(WriteCheckpoint(T, B, ""))
        await asyncio.wait_for(sent.wait(), 10)

    asyncio.run(try_again())
    least = (0, 0.001, 0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02)
    assert all(map(operator.ge, pauses, least)), pauses
    assert [node for node, said in bench.sent if isinstance(said, WriteCheckpoint)] == [A] * 9 + [B]


def test_to_ask_what_is_overdue_changes_nothing(bench: Bench) -> None:
    bench.order(form(1, A), StartWorker(T, A, ""), StopWorker(T, B, ""))
    bench.sent.clear()
    first = bench.effects.overdue(SPEC.warm_up_s + 1)
    assert (len(first.events), len(first.stops), len(first.hopeless)) == (2, 1, 1)
    assert bench.effects.overdue(SPEC.warm_up_s + 1) == first
    assert bench.sent == []


def test_a_worker_that_is_slow_to_start_is_told_of_once(bench: Bench) -> None:
    bench.order(StartWorker(T, A, ""), StartWorker(T, B, ""))
    bench.pending.note(5.0, WorkerReady(T, B), [])
    assert bench.effects.overdue(SLOW_S) == Overdue()
    assert bench.effects.overdue(SLOW_S + 1) == Overdue((WorkerSlow(T, A),))
    bench.pending.note(SLOW_S + 1, WorkerSlow(T, A), [])
    assert bench.effects.overdue(SLOW_S + 2) == Overdue()
    bench.order(StartWorker(T, A, "once more"), at_s=100.0)
    assert bench.effects.overdue(100.0 + SLOW_S + 1) == Overdue((WorkerSlow(T, A),))


def test_a_worker_that_does_not_get_warm_is_ended_once_and_then_its_node_is_given_up(bench: Bench) -> None:
    stop = StopWorker(T, A, f"its training loop did not begin within {SPEC.warm_up_s:g} s (--warm-up-s)")
    bench.order(StartWorker(T, A, ""))
    bench.pending.note(SLOW_S, WorkerSlow(T, A), [])
    assert bench.effects.overdue(SPEC.warm_up_s) == Overdue()
    assert bench.effects.overdue(SPEC.warm_up_s + 1) == Overdue(stops=(stop,))
    bench.effects.perform(stop)
    assert bench.sent[-1] == (A, stop)
    assert bench.effects.overdue(SPEC.warm_up_s + 2) == Overdue()
    late = bench.effects.overdue(SPEC.warm_up_s + STOP_LIMIT_S + SITE.grace_s + 1)
    assert late == Overdue(hopeless=((A, f"{T}'s process could not be ended within 65 s"),))


def test_a_worker_that_is_started_again_has_its_time_anew(bench: Bench) -> None:
    bench.order(StartWorker(T, A, ""))
    bench.pending.note(SLOW_S, WorkerSlow(T, A), [])
    for stop in bench.effects.overdue(SPEC.warm_up_s + 1).stops:
        bench.effects.perform(stop)
    bench.order(StartWorker(T, A, ""), at_s=SPEC.warm_up_s + 2)
    bench.pending.note(SPEC.warm_up_s + 3, WorkerSlow(T, A), [])
    assert bench.effects.overdue(2 * SPEC.warm_up_s) == Overdue()
    assert [stop.node for stop in bench.effects.overdue(2 * SPEC.warm_up_s + 3).stops] == [A]


def test_a_node_on_which_a_worker_cannot_be_ended_is_given_up(bench: Bench) -> None:
    bench.order(StopWorker(T, A, ""))
    assert bench.effects.overdue(STOP_LIMIT_S + SITE.grace_s) == Overdue()
    [(node, _)] = bench.effects.overdue(STOP_LIMIT_S + SITE.grace_s + 1).hopeless
    assert node == A


def test_a_submission_that_the_disk_does_not_take_is_one_clear_line(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (tmp_path / "run" / "trainers" / "u-01234567").write_text("in the way")
    with pytest.raises(PilotError, match="cannot record the submission of u"):
        bench.launches.add(TrainerSpec(TrainerId("u"), uid=UID), LAUNCH)


def test_a_submission_into_a_folder_that_may_not_be_entered_is_one_clear_line(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    trainers = tmp_path / "run" / "trainers"
    trainers.chmod(0)
    user = os.geteuid()
    try:
        os.seteuid(user or 65534)  # root may enter any folder
        with pytest.raises(PilotError, match=rf"cannot record the submission of u: Permission denied \({trainers}"):
            bench.launches.add(TrainerSpec(TrainerId("u"), uid=UID), LAUNCH)
    finally:
        os.seteuid(user)
        trainers.chmod(0o700)


def test_a_submission_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    (tmp_path / "scratch").write_text("no folder")
    with pytest.raises(PilotError, match="cannot record the submission"):
        LaunchStore(rundir, "pool-1", str(tmp_path / "scratch")).add(SPEC, LAUNCH)
    assert list(rundir.trainers.iterdir()) == []


def test_the_site_may_want_checkpoints_elsewhere(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    launches = LaunchStore(rundir, "pool-1", str(tmp_path / "scratch"))
    launches.add(SPEC, LAUNCH)
    assert launches.directory(SPEC) == tmp_path / "scratch" / "pool-1" / HOME
    assert (rundir.trainer(T) / "checkpoints").resolve() == launches.directory(SPEC) / "checkpoints"
    assert (rundir.trainer(T) / "logs").resolve().is_dir()
    assert LaunchStore(rundir, "pool-1", str(tmp_path / "scratch")).launch(SPEC) == LAUNCH


def test_the_code_is_kept_in_the_sites_folder_and_its_hash_in_ours(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path / "run")
    rundir.create()
    launches = LaunchStore(rundir, "pool-1", str(tmp_path / "scratch"))
    launches.add(SPEC, replace(LAUNCH, code=b"as submitted"))
    launches.change(SPEC, replace(LAUNCH, code=b"as resumed"))
    (archive,) = script_code.archives_in(launches.directory(SPEC))
    assert archive.read_bytes() == b"as resumed"
    kept = LaunchStore(rundir, "pool-1", str(tmp_path / "scratch")).launch(SPEC)
    assert kept == replace(LAUNCH, code_sha256=hashlib.sha256(b"as resumed").hexdigest())
