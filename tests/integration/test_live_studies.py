"""A real coordinator with a study, its sampler process and pilots that speak the wire protocol; both get killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import optuna
import psutil
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from pilot.cli import candidates
from pilot.core.commands import AskTrial, PauseGroup, StopWorker, TellTrial, WriteCheckpoint
from pilot.core.errors import UserError
from pilot.core.study.events import TrialAsked, TrialTold
from pilot.protocol import wire
from pilot.protocol.requests import TrialStatus
from pilot.rundir.entries import Decision
from pilot.rundir.journal import read, replay
from pilot.service.settings import fresh_core
from pilot.submission.study_definition import Range, StudyDefinition
from tests.integration.live_pool import DEADLINE_S, LAUNCH, Peer, Pool, pool, until

LR = {"lr": Range.read("log:1e-4:1e-1")}
STUDY = StudyDefinition(
    name="s", launch=LAUNCH, metric="accuracy", maximise=True, rungs=(1, 3), trials=6, parameters=LR, max_nodes=1
)


class Scripted:
    """A pilot that obeys its orders, and whose script reports when the test says so."""

    def __init__(self, live: Pool, number: int) -> None:
        self.live, self.number = live, number
        self.reports: dict[str, int] = {}
        self.arguments: dict[str, list[str]] = {}
        self.running: dict[str, int] = {}
        self.connect()

    def connect(self) -> None:
        """As a new process, without its workers."""
        self.running = {}
        self.peer = Peer(self.live.file, f"p{self.number}-{time.monotonic_ns()}", f"n{self.number}").welcomed()

    def play(self) -> None:
        """Answer what has come, and show that it is alive."""
        self.peer.say(wire.Heartbeat(time.monotonic()))
        while self.peer.has_news(0.02):
            self._answer(self.peer.hears(wire.Sent))

    def _answer(self, message: wire.Message) -> None:
        say = self.peer.say
        match message:
            case wire.StartWorker():
                self.arguments[message.trainer] = message.launch.arguments
                assert message.launch.environment["PILOT_STUDY_METRIC"] == "accuracy"
                say(wire.WorkerReady(message.trainer, 0.1))
            case wire.JoinGroup():
                say(wire.RankAddress(message.trainer, message.generation, {"rank-0": "address"}, "127.0.0.1:1"))
                say(wire.GroupFormed(message.trainer, message.generation, 0, 0))
                self.running[message.trainer] = message.generation
            case PauseGroup():
                say(wire.RankPaused(message.trainer, message.generation, 0))
            case WriteCheckpoint():
                generation = self.running.get(message.trainer, 1)
                say(wire.CheckpointWritten(message.trainer, generation, 0, asked=True, path="/c.h5"))
            case StopWorker():
                self.running.pop(message.trainer, None)
                say(wire.WorkerExited(message.trainer, "stopped"))
            case _:
                pass

    def report(self) -> None:
        """Each trial running here reports once more; larger lr, better report."""
        for trainer, generation in self.running.items():
            made = self.reports[trainer] = self.reports.get(trainer, 0) + 1
            lr = float(self.arguments[trainer][-1].removeprefix("--lr="))
            rows = [(n, lr * n) for n in range(1, made + 1)]
            self.peer.say(wire.Progress(trainer, generation, made, 0, 32 * made, reports=rows))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Pool]:
    with pool(tmp_path, silent_s=4, orphan_s=4) as made:
        yield made


def trials(live: Pool) -> list[TrialStatus]:
    return live.client.trials("s").trials


def go_on(live: Pool, peers: list[Scripted], until: Callable[[], Any], *, report: bool = True) -> None:
    """Play until the condition holds."""
    end_s = time.monotonic() + DEADLINE_S
    while not until():
        assert time.monotonic() < end_s, (live.client.trials("s"), live.log()[-3000:])
        for peer in peers:
            peer.play()
            if report:
                peer.report()


def kill_coordinator(live: Pool, peers: list[Scripted]) -> None:
    """As by a power failure of its host: its pilots are gone, too."""
    live.kill(signal.SIGKILL)
    for peer in peers:
        peer.peer.die()
    live.up()
    for peer in peers:
        peer.connect()


def happened(live: Pool, event: type[TrialAsked] | type[TrialTold]) -> list[int]:
    """The numbers of the trials that did so."""
    entries = read(live.run_dir / "journal.jsonl").entries
    return [e.event.number for e in entries if isinstance(e, Decision) and isinstance(e.event, event)]


def check(live: Pool, total: int = 6) -> None:
    """Every trial ran once and was told once, its values match Optuna's, and the journal replays identically."""
    told = live.client.trials("s")
    assert told.study.state == "over"
    assert [trial.number for trial in told.trials] == list(range(total))
    until(lambda: len(happened(live, TrialTold)) == total)  # the study is over before the sampler has heard of the last
    contents = read(live.run_dir / "journal.jsonl")
    decisions = [entry for entry in contents.entries if isinstance(entry, Decision)]
    commands = [command for decision in decisions for command in decision.commands]
    assert sorted({c.number for c in commands if isinstance(c, AskTrial)}) == list(range(total))
    assert sorted(c.number for c in commands if isinstance(c, TellTrial)) == list(range(total))
    for event in (TrialAsked, TrialTold):
        assert sorted(happened(live, event)) == list(range(total))
    assert replay(contents, fresh_core(contents)) == ""
    storage = JournalStorage(JournalFileBackend(told.study.optuna))
    found = optuna.load_study(study_name="s", storage=storage).trials
    assert [trial.params for trial in found] == [trial.parameters for trial in told.trials]
    assert [trial.value for trial in found] == [trial.values[0] for trial in told.trials]


def completed(live: Pool, begun: str) -> list[str]:
    """What a shell offers for the name of a study."""
    context = click.Context(click.Command("stop"))
    context.params["run_dir"] = live.run_dir
    return [item.value for item in candidates.studies(context, click.Argument(["study"]), begun)]


def test_a_study_goes_from_its_first_trial_to_its_best(live: Pool) -> None:
    live.client.run_study(STUDY)
    with pytest.raises(UserError, match="a study named s already exists"):
        live.client.run_study(STUDY)
    assert completed(live, "") == completed(live, "s") == ["s"] and completed(live, "x") == []
    peers = [Scripted(live, number) for number in range(2)]
    go_on(live, peers, lambda: live.client.studies().studies[0].state == "over")
    check(live)
    study = live.client.studies().studies[0]
    assert study.by_state["complete"] >= 2
    assert sum(study.by_state.values()) == 6
    assert study.by_state["shelved"] >= 1
    best = study.best
    assert best is not None
    assert best.parameters["lr"] == max(float(str(trial.parameters["lr"])) for trial in trials(live))
    go_on(live, peers, lambda: {live.trainer(trial.trainer).phase for trial in trials(live)} == {"shelved", "complete"})
    other = msgspec.structs.replace(STUDY, parameters={"lr": Range.read("log:1e-3:1e-1")})
    with pytest.raises(UserError, match=r"lr was log:0\.0001:0\.1, now log:0\.001:0\.1"):
        live.client.resume_study("s", 1, other)
    with pytest.raises(UserError, match="at most 100000 trials, and s has 6"):
        live.client.resume_study("s", 99_999)
    live.client.resume_study("s", 2)
    go_on(live, peers, lambda: live.client.studies().studies[0].state == "over")
    check(live, 8)


def test_it_survives_kills_of_the_coordinator_at_an_ask_a_tell_a_promotion_and_a_shelving(live: Pool) -> None:
    live.client.run_study(STUDY)
    peers = [Scripted(live, 0)]
    kill_coordinator(live, peers)  # as it asks for the first trial
    go_on(live, peers, lambda: any(t.reports for t in trials(live)))
    kill_coordinator(live, peers)  # as it tells the result of it, and shelves it
    go_on(live, peers, lambda: any(t.rung > 1 for t in trials(live)))
    kill_coordinator(live, peers)  # as it has promoted one
    go_on(live, peers, lambda: any(t.state == "complete" for t in trials(live)))
    kill_coordinator(live, peers)  # as the best one is shelved for good
    go_on(live, peers, lambda: live.client.studies().studies[0].state == "over")
    check(live)


@pytest.mark.long
def test_it_survives_kills_of_the_sampler_and_a_pool_that_was_down(live: Pool) -> None:
    live.client.run_study(STUDY)
    peers = [Scripted(live, 0)]
    go_on(live, peers, lambda: any(t.reports for t in trials(live)))
    assert live.process is not None
    for child in psutil.Process(live.process.pid).children():
        if "pilot.service.planning.sampler_child" in child.cmdline():
            os.kill(child.pid, signal.SIGKILL)
    go_on(live, peers, lambda: len(trials(live)) > 3)
    live.client.down()
    while live.process.poll() is None:
        peers[0].play()
        if not any(peers[0].running):
            peers[0].peer.die()
    live.up()
    peers[0].connect()
    go_on(live, peers, lambda: live.client.studies().studies[0].state == "over")
    check(live)
