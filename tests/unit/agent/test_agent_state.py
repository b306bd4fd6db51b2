"""The agent's state machine: what follows from each order, worker message and end of a process."""

from __future__ import annotations

import pytest

from pilot.agent.agent_state import FINALIZE_LIMIT_S, LEFT, STOP_LIMIT_S, AgentState
from pilot.agent.departure import Departure
from pilot.agent.events_effects import (
    CoordinatorLost,
    CoordinatorMessage,
    Effect,
    Event,
    Exit,
    KillRank,
    KillWorker,
    LogLine,
    ProcessFailed,
    RankEnded,
    Send,
    SendToWorker,
    Ticked,
    Watch,
    Watched,
    WorkerEnded,
    WorkerMessage,
)
from pilot.comm.rank_order import WORKER_GONE
from pilot.core.commands import (
    CheckScript,
    DissolveGroup,
    ExamineGroup,
    PauseGroup,
    ReleaseNode,
    SetCheckpointInterval,
    StopWorker,
    WriteCheckpoint,
)
from pilot.core.events import Unloaded
from pilot.protocol import wire
from pilot.protocol.fields import StepTimes
from pilot.submission.submission import LaunchSpec

WELCOME = wire.Welcome("n1", "lab", heartbeat_s=1, silent_s=5, orphan_s=100, grace_s=30)
LAUNCH = LaunchSpec("train.py", "", [], "/", "python", {})
ORDER = wire.StartWorker("t1", "", "/run/t1", LAUNCH, 60, 2)


class Machine:
    """An agent's state with a clock set by the test. Notes are removed from its results."""

    def __init__(self, state: AgentState | None = None) -> None:
        self.state = state or AgentState()
        self.now_s = 1000.0

    def take(self, event: Event) -> list[Effect]:
        return [e for e in self.state.handle(self.now_s, event) if not isinstance(e, LogLine)]

    def welcome(self) -> list[Effect]:
        """Its Hello, and the answer to it."""
        self.state.departure.greeted(self.now_s)
        return self.order(WELCOME)

    def order(self, message: wire.ToAgent) -> list[Effect]:
        return self.take(CoordinatorMessage(message))

    def after(self, seconds: float) -> list[Effect]:
        self.now_s += seconds
        return self.take(Ticked())


@pytest.fixture
def joined() -> Machine:
    machine = Machine()
    assert machine.welcome() == []
    return machine


@pytest.fixture
def up(joined: Machine) -> Machine:
    """A warm worker of t1."""
    assert joined.order(ORDER) == [ORDER]
    word = wire.WorkerReady("t1", 2.0)
    assert joined.take(WorkerMessage("t1", word)) == [Send(word)]
    return joined


def pause(silent_s: int) -> SendToWorker:
    return SendToWorker("t1", PauseGroup("t1", 1, (), f"no coordinator for {silent_s} s"))


def join(generation: int) -> wire.JoinGroup:
    return wire.JoinGroup("t1", generation, 0, 1)


@pytest.fixture
def training(up: Machine) -> Machine:
    """t1 leads and trains in generation 1."""
    table = wire.GroupAddresses("t1", 1, {"key": "value"}, [])
    assert up.order(join(1)) == [SendToWorker("t1", join(1)), join(1)]
    ours = wire.RankAddress("t1", 1, table.puts, "10.0.0.1:1")
    assert up.take(ours) == [Send(ours)]
    assert up.order(table) == [table]
    assert up.take(wire.RankJoined("t1", 1)) == [Send(wire.RankJoined("t1", 1))]
    return up


# --- workers --------------------------------------------------------------------------------------------------------


def test_a_second_order_for_a_worker_that_runs_starts_no_other(joined: Machine) -> None:
    joined.order(ORDER)
    assert joined.order(ORDER) == []
    joined.take(WorkerMessage("t1", wire.WorkerReady("t1", 2.0)))
    assert joined.order(ORDER) == [Send(wire.WorkerReady("t1", 0.0))]


def test_a_worker_with_an_order_to_stop_has_time_to_end_by_itself(up: Machine) -> None:
    stop = StopWorker("t1", "", "finished")
    assert up.order(stop) == [SendToWorker("t1", stop)]
    assert up.after(STOP_LIMIT_S - 1) == []
    assert up.take(WorkerEnded("t1", 0, "")) == [Send(wire.WorkerExited("t1", "stopped", "finished"))]
    assert up.after(STOP_LIMIT_S) == []


@pytest.mark.parametrize(
    ("said", "end", "no_memory"),
    [
        (None, WorkerEnded("t1", -9, "", out_of_memory=True), True),
        (None, WorkerEnded("t1", -9, ""), False),
        (wire.ScriptRaised("t1", 1, "torch.OutOfMemoryError: x", "", True), WorkerEnded("t1", 1, ""), True),
        (wire.ScriptRaised("t1", 1, "ValueError: x", ""), WorkerEnded("t1", 1, ""), False),
    ],
)
@pytest.mark.parametrize("stopped", [False, True])
def test_a_worker_that_ended_for_lack_of_memory_is_told_so_unless_it_was_stopped(
    up: Machine, said: wire.ScriptRaised | None, end: WorkerEnded, no_memory: bool, stopped: bool
) -> None:
    if said is not None:
        up.take(WorkerMessage("t1", said))
    if stopped:
        up.order(StopWorker("t1", "", "the plan"))
    told = [e.message for e in up.take(end) if isinstance(e, Send) and isinstance(e.message, wire.WorkerExited)]
    assert [message.out_of_memory for message in told] == [no_memory and not stopped]
    assert no_memory or "no memory" not in told[0].detail


@pytest.mark.parametrize("order", ["", "before", "after"])
def test_a_script_that_raised_is_not_held_by_its_threads(up: Machine, order: str) -> None:
    told = "its script failed after the loop: " if order else ""
    if order == "before":
        up.order(StopWorker("t1", "", "finished", 600.0))
    said = wire.ScriptRaised("t1", 1, "ValueError: no labels", "train.py, line 3: builtins.ValueError")
    assert up.take(WorkerMessage("t1", said)) == []
    if order == "after":
        up.order(StopWorker("t1", "", "finished", 600.0))
    assert up.after(STOP_LIMIT_S - 1) == []
    assert up.after(1.0) == [KillWorker("t1")]
    ended = up.take(WorkerEnded("t1", -9, "Traceback"))
    assert Send(wire.WorkerExited("t1", "raised", f"{told}ValueError: no labels", "", said.origin)) in ended


@pytest.mark.parametrize(
    ("end", "report"),
    [
        (WorkerEnded("t1", 0, ""), ("stopped", "its script has ended")),
        (
            WorkerEnded("t1", 1, "Traceback (most recent call last):\nOSError: no room\n"),
            ("raised", "its script failed after the loop: OSError: no room"),
        ),
        (
            WorkerEnded("t1", 5, "accuracy 0.9\n"),
            ("raised", "its script failed after the loop: accuracy 0.9 (exit status 5)"),
        ),
        (WorkerEnded("t1", 5, ""), ("raised", "its script failed after the loop: exit status 5")),
        (WorkerEnded("t1", -9, ""), ("died", "its code after the training loop was killed by SIGKILL")),
    ],
)
def test_what_comes_after_the_loop_has_the_time_that_it_is_given(
    up: Machine, end: WorkerEnded, report: tuple[str, str]
) -> None:
    up.order(StopWorker("t1", "", "finished", 60.0))
    assert up.after(59.0) == []
    (sent,) = up.take(end)
    assert isinstance(sent, Send)
    assert isinstance(sent.message, wire.WorkerExited)
    assert (sent.message.cause, sent.message.detail[: len(report[1])]) == report


def test_what_a_worker_measures_is_kept_for_the_next_heartbeat(up: Machine) -> None:
    for steps in (20, 21):
        assert up.take(WorkerMessage("t1", wire.RankStepTimes("t1", StepTimes(steps, 160, 4.0, 10.0)))) == []
    assert up.state.step_times == {"t1": StepTimes(21, 160, 4.0, 10.0)}


FINISHED, CANCELLED = StopWorker("t1", "", "finished", 60.0), StopWorker("t1", "", "cancelled")
SHUT_DOWN = StopWorker("t1", "", "the pool was shut down", 20.0)
CUT = "its code after the training loop was stopped after {} s ({})"


@pytest.mark.parametrize(
    ("orders", "within_s", "cause", "detail"),
    [
        ([CANCELLED], STOP_LIMIT_S, "stopped", "cancelled"),
        ([FINISHED], 60.0, "died", CUT.format(60, "--after-loop-s")),
        ([FINISHED, SHUT_DOWN], 20.0, "died", CUT.format(20, "the pool was shut down")),
        ([FINISHED, CANCELLED], STOP_LIMIT_S, "stopped", "cancelled"),
    ],
)
def test_a_worker_that_does_not_stop_in_time_is_killed_once(
    up: Machine, orders: list[StopWorker], within_s: float, cause: str, detail: str
) -> None:
    """The last order counts, also if it leaves less time than the one before."""
    for order in orders:
        assert up.order(order) == [SendToWorker("t1", order)]
        assert up.after(10.0) == []
    assert up.after(within_s - 11.0) == []
    assert up.after(1.0) == [KillWorker("t1")]
    assert up.after(1.0) == []
    assert up.take(WorkerEnded("t1", -9, "")) == [Send(wire.WorkerExited("t1", cause, detail))]


def test_a_worker_that_still_imports_is_killed_at_once(joined: Machine) -> None:
    joined.order(ORDER)
    assert joined.order(StopWorker("t1", "", "cancelled")) == [KillWorker("t1")]


def test_a_worker_that_may_hang_is_killed_at_once(training: Machine) -> None:
    assert training.order(StopWorker("t1", "", "a node was lost", kill=True)) == [KillWorker("t1")]
    ended = training.take(WorkerEnded("t1", -9, ""))
    assert Send(wire.WorkerExited("t1", "stopped", "a node was lost")) in ended


def test_a_worker_that_dies_takes_its_generations_with_it_silently(training: Machine) -> None:
    assert training.take(WorkerEnded("t1", -11, "", "/log")) == [
        KillRank("t1", 1),
        Send(wire.WorkerExited("t1", "died", "killed by SIGSEGV", "/log")),
    ]
    assert training.take(RankEnded("t1", 1, 7, "")) == []


def test_rank_processes_of_a_worker_that_ended_well_may_take_leave_of_each_other(training: Machine) -> None:
    training.order(StopWorker("t1", "", "finished"))
    assert training.take(WorkerEnded("t1", 0, "")) == [Send(wire.WorkerExited("t1", "stopped", "finished"))]
    assert training.after(1) == []
    assert training.after(FINALIZE_LIMIT_S) == [KillRank("t1", 1)], "its rank process hangs"
    assert training.after(FINALIZE_LIMIT_S) == []


def test_a_worker_of_one_trainer_cannot_speak_for_another(up: Machine) -> None:
    assert up.take(WorkerMessage("t1", wire.WorkerReady("t2", 1.0))) == []
    assert up.take(WorkerMessage("t1", wire.Noticed("mischief", 0.0))) == []
    assert up.take(WorkerMessage("t1", wire.Remark("t1", "slow"))) == [Send(wire.Remark("t1", "slow"))]


def test_orders_about_what_is_not_there_are_answered(joined: Machine) -> None:
    nobody = "no worker of t1 runs on this node"
    assert joined.order(StopWorker("t1", "", "x")) == [Send(wire.WorkerExited("t1", "stopped", "it was not running"))]
    assert joined.order(SetCheckpointInterval("t1", "", 7.5, "")) == []
    assert joined.order(WriteCheckpoint("t1", "", "x")) == [
        Send(wire.CheckpointWritten("t1", 0, 0, asked=True, error=nobody))
    ]
    assert joined.order(join(1)) == [KillRank("t1", 1), Send(wire.GroupBroken("t1", 1, nobody))]
    assert joined.order(PauseGroup("t1", 2, (), "")) == [KillRank("t1", 2), Send(wire.GroupBroken("t1", 2, nobody))]


# --- groups ---------------------------------------------------------------------------------------------------------


def test_a_group_that_breaks_is_killed_and_reported_once(training: Machine) -> None:
    reason = "its rank process ended with status 9: bad termination"
    assert training.take(RankEnded("t1", 1, 9, "\nbad termination\n")) == [
        KillRank("t1", 1),
        SendToWorker("t1", DissolveGroup("t1", 1, (), reason)),
        Send(wire.GroupBroken("t1", 1, reason)),
    ]
    assert training.take(RankEnded("t1", 1, 7, "")) == []
    assert training.take(WorkerMessage("t1", wire.GroupBroken("t1", 1, "my rank is gone"))) == []
    unloaded = wire.GroupBroken("t1", 2, "no such folder", Unloaded.UNREAD)
    assert training.take(WorkerMessage("t1", unloaded))[-1] == Send(unloaded)
    assert training.order(join(1)) == [], "what is over stays over"
    assert training.take(wire.RankAddress("t1", 1, {}, "")) == []
    assert training.take(wire.RankJoined("t1", 1)) == []
    assert training.order(wire.GroupAddresses("t1", 1, {}, [])) == []


def test_a_worker_that_leaves_its_rank_process_is_about_to_end_and_its_end_tells_why(training: Machine) -> None:
    assert training.take(RankEnded("t1", 1, WORKER_GONE, "")) == []
    assert training.after(STOP_LIMIT_S - 1) == []
    assert training.take(WorkerEnded("t1", 1, "ValueError: no data")) == [
        KillRank("t1", 1),
        Send(wire.WorkerExited("t1", "raised", "ValueError: no data (exit status 1)")),
    ]
    assert training.after(STOP_LIMIT_S) == []


def test_a_worker_that_leaves_its_rank_process_and_does_not_end_breaks_its_group(training: Machine) -> None:
    assert training.take(RankEnded("t1", 1, WORKER_GONE, "")) == []
    assert training.after(STOP_LIMIT_S) == [
        KillRank("t1", 1),
        SendToWorker("t1", DissolveGroup("t1", 1, (), LEFT)),
        Send(wire.GroupBroken("t1", 1, LEFT)),
    ]
    assert training.after(STOP_LIMIT_S) == []


def test_the_end_of_a_generation_after_a_switch_is_not_reported(training: Machine) -> None:
    training.order(join(2))
    assert training.state.inventory() == [("t1", "", 1, 0, True)]
    assert training.take(RankEnded("t1", 1, 0, "")) == []
    training.take(WorkerMessage("t1", wire.Progress("t1", 2, 40, 0, 100)))
    assert training.state.inventory() == [("t1", "", 2, 40, True)]


def test_a_younger_generation_can_break_without_the_one_that_trains(training: Machine) -> None:
    training.order(join(2))
    kill = DissolveGroup("t1", 2, (), "superseded")
    assert training.order(kill) == [KillRank("t1", 2), SendToWorker("t1", kill)]
    assert training.take(RankEnded("t1", 2, -9, "")) == []
    assert training.take(RankEnded("t1", 1, 7, ""))[-1] == Send(
        wire.GroupBroken("t1", 1, "its rank process ended with status 7")
    )


def test_a_rank_process_of_no_use_breaks_its_group_and_such_a_worker_dies(training: Machine) -> None:
    reason = "a rank process was stopped"
    assert training.take(ProcessFailed("t1", 1, reason))[-1] == Send(wire.GroupBroken("t1", 1, reason))
    assert training.take(ProcessFailed("t1", 0, "stopped, then killed")) == [KillWorker("t1")]
    (down,) = training.take(WorkerEnded("t1", -9, ""))
    assert down == Send(wire.WorkerExited("t1", "died", "stopped, then killed"))
    assert training.take(ProcessFailed("t1", 2, reason)) == [], "there is no worker any more"


# --- leaving --------------------------------------------------------------------------------------------------------


EXAMINE = ExamineGroup("t1", 1, (), "", True)


@pytest.fixture
def examined(training: Machine) -> Machine:
    """t1 is being examined."""
    assert training.order(EXAMINE) == [SendToWorker("t1", EXAMINE), Watch("t1")]
    return training


def test_a_worker_without_progress_is_lost_and_one_with_progress_is_slow(examined: Machine) -> None:
    assert examined.take(Watched("t1", True, "it computes")) == [
        Send(wire.RankExamined("t1", 1, "slow", "it computes"))
    ]
    examined.order(EXAMINE)
    lost = examined.take(Watched("t1", False, "it is stopped"))
    assert lost == [Send(wire.RankExamined("t1", 1, "lost", "it is stopped")), KillWorker("t1")]
    down = wire.WorkerExited("t1", "died", "the others were waiting for it and it is stopped: killed")
    assert examined.take(WorkerEnded("t1", -9, ""))[-1] == Send(down)


def test_a_worker_without_progress_is_left_alone_while_there_is_patience(training: Machine) -> None:
    training.order(ExamineGroup("t1", 1, (), "", False))
    (report,) = training.take(Watched("t1", False, "it makes no progress"))
    assert report == Send(wire.RankExamined("t1", 1, "slow", "it makes no progress; waiting for it (--patience-s)"))


@pytest.mark.parametrize(
    ("answer", "seen"),
    [
        (wire.RankStalled("t1", 1, 9, 5.0, summing=True), "waits"),
        (wire.RankStalled("t1", 1, 9, 0.5, summing=True), "here"),
        (wire.RankStalled("t1", 1, 9, 5.0, summing=False), "waits"),
        (wire.RankStalled("t1", 1, 9, 0.5, summing=False), "here"),
        (wire.RankStalled("t1", 2, 9, 5.0, summing=True), "here"),
        (wire.RankStalled("t1", 0, 9, 0.0, summing=False), "here"),
    ],
)
def test_a_worker_that_answers_is_not_lost(examined: Machine, answer: wire.RankStalled, seen: str) -> None:
    assert examined.take(WorkerMessage("t1", answer)) == [Send(answer)]
    (report,) = examined.take(Watched("t1", False, "it makes no progress"))
    assert isinstance(report, Send)
    assert isinstance(report.message, wire.RankExamined)
    assert report.message.seen == seen


def test_messages_before_the_examination_do_not_count(training: Machine) -> None:
    training.take(WorkerMessage("t1", wire.RankStalled("t1", 1, 9, 5.0, summing=True)))
    training.order(EXAMINE)
    assert KillWorker("t1") in training.take(Watched("t1", False, "it makes no progress"))


def test_an_examination_of_no_worker_is_answered_and_one_of_an_ended_worker_is_over(training: Machine) -> None:
    (report,) = training.order(ExamineGroup("t9", 1, (), "", True))
    assert report == Send(wire.RankExamined("t9", 1, "unknown", "no worker of t9 runs on this node"))
    training.order(EXAMINE)
    training.take(WorkerEnded("t1", -9, ""))
    assert training.take(Watched("t1", False, "it makes no progress")) == []


def test_orders_to_end(joined: Machine) -> None:
    assert joined.order(ReleaseNode("", "released")) == [Exit(0, "released")]
    assert joined.order(wire.Refused("another version")) == [Exit(2, "refused by the coordinator: another version")]


def test_a_notice_is_reported_once_and_the_grace_is_used(joined: Machine) -> None:
    notice = wire.Noticed("signal SIGTERM", 30.0)
    assert joined.take(notice) == [Send(wire.Noticed("signal SIGTERM", 30.0))]
    assert joined.take(notice) == []
    assert joined.after(28.9) == []
    assert joined.after(0.2) == [Exit(0, "signal SIGTERM: out of time")]


def test_a_second_interrupt_ends_it_at_once(joined: Machine) -> None:
    joined.take(wire.Noticed("signal SIGINT", 30.0))
    assert joined.take(wire.Noticed("signal SIGINT", 30.0)) == [Exit(0, "signal SIGINT, twice")]


def test_a_notice_before_it_has_joined_ends_it() -> None:
    assert Machine().take(wire.Noticed("signal SIGTERM", 30.0)) == [Exit(0, "signal SIGTERM, before it joined")]


def test_a_coordinator_that_comes_back_learns_of_the_notice(joined: Machine) -> None:
    joined.take(CoordinatorLost())
    assert joined.take(wire.Noticed("signal SIGTERM", 30.0)) == []
    joined.now_s += 5
    assert joined.welcome() == [Send(wire.Noticed("signal SIGTERM", 25.0))]


def test_the_wall_time_is_known_before_its_end() -> None:
    machine = Machine(AgentState(Departure(own_grace_s=20, walltime_end_s=1100.0)))
    machine.welcome()
    assert machine.after(74) == []
    machine.order(wire.HeartbeatSeen(machine.now_s))
    assert machine.after(2) == [Send(wire.Noticed("wall time", 24))]
    assert machine.after(21.9) == []
    assert machine.after(0.2) == [Exit(0, "wall time: out of time")]


def test_without_a_grace_the_time_before_the_wall_times_end_is_used() -> None:
    machine = Machine(AgentState(Departure(own_grace_s=0, walltime_end_s=1100.0)))
    machine.welcome()
    assert machine.after(74) == []
    machine.order(wire.HeartbeatSeen(machine.now_s))
    assert machine.after(21.5) == [Send(wire.Noticed("wall time", 4.5))]
    assert machine.after(2.4) == [], "what is left is for checkpoints"
    assert machine.after(0.2) == [Exit(0, "wall time: out of time")]


def test_a_signal_after_the_notice_of_the_wall_time_takes_nothing_away() -> None:
    machine = Machine(AgentState(Departure(own_grace_s=0, walltime_end_s=1100.0)))
    machine.welcome()
    machine.after(74)
    machine.order(wire.HeartbeatSeen(machine.now_s))
    machine.after(22)
    assert machine.take(wire.Noticed("signal SIGTERM", 30.0)) == []
    assert machine.after(1.9) == []


# --- without a coordinator ------------------------------------------------------------------------------------------


def test_an_orphan_pauses_writes_and_leaves(training: Machine) -> None:
    training.take(CoordinatorLost())
    assert training.after(89) == []
    assert training.after(1) == [pause(90)]
    paused = wire.RankPaused("t1", 1, 7)
    write = SendToWorker("t1", WriteCheckpoint("t1", "", "no coordinator for 90 s"))
    assert training.take(WorkerMessage("t1", paused)) == [Send(paused), write]
    done = wire.CheckpointWritten("t1", 1, 7, asked=True, path="/x.h5")
    assert training.take(WorkerMessage("t1", done)) == [Send(done), Exit(0, "no coordinator for 90 s")]


@pytest.mark.parametrize("closes", [True, False])
def test_the_lease_runs_from_what_the_coordinator_is_known_to_have_heard(training: Machine, closes: bool) -> None:
    training.after(50)
    training.order(wire.HeartbeatSeen(training.now_s - 2))
    training.order(wire.HeartbeatSeen(training.now_s - 40))
    training.after(12)
    if closes:
        training.take(CoordinatorLost())
    assert training.after(75) == []
    assert training.after(1) == [pause(90)]


def test_what_still_trains_when_the_lease_ends_is_killed(training: Machine) -> None:
    training.after(90)
    assert training.after(9) == []
    assert training.after(1)[0] == KillRank("t1", 1)


def test_a_notice_while_the_coordinator_listens_does_not_shorten_the_lease(training: Machine) -> None:
    training.after(20)
    training.take(wire.Noticed("signal SIGTERM", 30.0))
    assert training.after(25) == []


def test_a_group_that_does_not_pause_is_given_up_here_and_its_state_written(training: Machine) -> None:
    training.take(CoordinatorLost())
    training.after(90)
    assert training.after(9) == []
    reason = "no coordinator for 90 s"
    assert training.after(1) == [
        KillRank("t1", 1),
        SendToWorker("t1", DissolveGroup("t1", 1, (), reason)),
        SendToWorker("t1", WriteCheckpoint("t1", "", reason)),
    ]
    assert training.after(50) == [Exit(0, f"{reason}; not all states were written in time")]


def test_an_orphan_without_a_state_leaves_at_once(up: Machine) -> None:
    up.take(CoordinatorLost())
    assert up.after(100) == [Exit(0, "no coordinator for 100 s")]


def test_a_parked_worker_writes_at_once(training: Machine) -> None:
    training.order(DissolveGroup("t1", 1, (), "a member is lost"))
    training.take(CoordinatorLost())
    assert training.after(100) == [SendToWorker("t1", WriteCheckpoint("t1", "", "no coordinator for 100 s"))]
    assert training.take(WorkerEnded("t1", -9, ""))[-1] == Exit(0, "no coordinator for 100 s")


def test_a_coordinator_that_comes_back_in_time_changes_nothing(training: Machine) -> None:
    training.take(CoordinatorLost())
    training.after(89)
    training.welcome()
    assert training.after(89) == []


def test_a_notice_without_coordinator_begins_the_farewell_early(training: Machine) -> None:
    training.take(CoordinatorLost())
    training.take(wire.Noticed("signal SIGTERM", 30.0))
    assert training.after(7) == [pause(7)]
    assert training.after(9)[0] == KillRank("t1", 1)
    assert training.after(12) == [Exit(0, "no coordinator for 7 s; not all states were written in time")]


def test_loaded_code_is_reported_again_to_a_coordinator_that_may_not_know_it() -> None:
    machine = Machine()
    machine.welcome()
    machine.order(ORDER)
    loaded = wire.CodeLoaded("t1", {"/lib.py": "0" * 64})
    assert machine.take(WorkerMessage("t1", loaded)) == [Send(loaded)]
    machine.take(CoordinatorLost())
    assert Send(loaded) in machine.welcome()
    machine.take(WorkerEnded("t1", 0, ""))
    machine.take(CoordinatorLost())
    assert Send(loaded) not in machine.welcome()


def test_a_script_is_checked_once_and_its_result_repeated(up: Machine) -> None:
    order, found = CheckScript("t1", "", ""), wire.ScriptChecked("t1", "passed", "18 steps train the same")
    assert up.order(order) == [order]
    assert up.order(order) == [], "it runs"
    assert up.take(WorkerMessage("t1", found)) == [Send(found)]
    assert up.order(order) == [Send(found)]
    up.take(WorkerEnded("t1", 1, ""))
    [answer] = up.order(order)
    assert answer == Send(wire.ScriptChecked("t1", "unchecked", "no worker of t1 runs on this node"))
    assert up.take(WorkerMessage("t1", found)) == [], "it comes too late"
    up.order(ORDER)
    assert up.order(order) == [order], "another worker's script is checked anew"
