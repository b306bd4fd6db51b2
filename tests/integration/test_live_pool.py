"""The live coordinator against peers over real sockets: joining, training, losing nodes, draining."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from pilot import __version__
from pilot.core.commands import DissolveGroup, FormGroup, PauseGroup, ReleaseNode, StopWorker, WriteCheckpoint
from pilot.core.errors import UserError
from pilot.core.events import PoolChanged, SpeedsMeasured
from pilot.core.plan.explain import Explanation
from pilot.core.trainer.situation import WRITES_TRIED
from pilot.core.trainer.trainer import Phase
from pilot.protocol import connection, wire
from pilot.protocol.fields import StepTimes
from pilot.protocol.requests import TrainerPhase
from pilot.rundir.journal import read
from pilot.rundir.rundir import Ended, read_end
from tests.integration.live_pool import Peer, Pool, form, pool, until, warm
from tests.streams import Stream


def test_a_trainer_runs_from_submission_to_its_end_and_the_journal_replays(live: Pool) -> None:
    trainer, peers = live.running(2)
    row = (1, 0, 0, 10, 0, 320)
    peers[0].say(wire.Progress(trainer, 1, 10, 0, 320, 100.0, ledger=[row], metrics={"loss": 0.5}))
    seen = until(lambda: (t := live.trainer(trainer)).step == 10 and t)
    assert (seen.samples, seen.metrics, seen.samples_per_s) == (320, {"loss": 0.5}, 100.0)
    assert live.client.wait([trainer], limit_s=0.0).trainers == {trainer: "running"}
    peers[0].say(wire.TrainerFinished(trainer, 1, 12, 384, {"accuracy": 0.9}))
    for peer in peers:
        assert peer.hears(StopWorker).trainer == trainer
        peer.say(wire.WorkerExited(trainer, "stopped"))
    assert live.client.wait([trainer]).trainers == {trainer: "finished"}
    assert live.trainer(trainer).metrics == {"loss": 0.5, "accuracy": 0.9}
    leave(live, peers)
    live.replays()


def test_a_node_whose_wall_time_ends_soon_is_left_to_a_trainer_that_it_pays_for(live: Pool) -> None:
    """It leaves within the forward-looking time: worthless to a trainer with expensive rescales, useful to one
    without.
    """
    short = Peer(live.file, "short", "n1", walltime_s=80.0).welcomed()
    long = Peer(live.file, "long", "n2", walltime_s=1e6).welcomed()
    until(lambda: len(live.nodes()) == 2)
    ends_in_s = {node.host: (node.ends_s or 0.0) - node.joined_s for node in live.client.status().pool}
    assert 0 < ends_in_s["n1"] < 80 < ends_in_s["n2"]
    dear = live.submit(name="dear", max_nodes=2, rescale_up_s=60.0, rescale_down_s=60.0)
    warm(long, dear)
    form([long], dear, resumed=0)
    cheap = live.submit(name="cheap", max_nodes=2, rescale_up_s=0.0, rescale_down_s=0.0)
    warm(short, cheap)
    for peer in (short, long):
        peer.die()
    live.kill(signal.SIGTERM)
    live.replays()


def leave(live: Pool, peers: list[Peer]) -> None:
    live.client.down()
    for peer in peers:
        peer.hears(ReleaseNode)
        peer.die()
    assert live.ended() == 0
    assert not live.file.exists()


def test_explanations_and_cancellations_arrive_unchanged(live: Pool) -> None:
    waiting = live.submit(name="waiting")
    told = live.client.explain(waiting)
    assert (told.decision, told.sentences[0]) == (None, "waiting was not part of the last plan.")
    assert live.client.cancel(waiting) == TrainerPhase(trainer=waiting, phase=Phase.CANCELLED, held="")
    trainer, _ = live.running(2)
    told = live.client.explain(trainer)
    assert "The worth is counted in seconds of its training on one node." in told.sentences
    decision = told.decision
    assert isinstance(decision, Explanation)
    assert [(term.nodes, term.allowed) for term in decision.terms] == [(1, True), (2, True), (3, False)]
    assert live.client.cancel(trainer).trainer == trainer
    with pytest.raises(UserError, match="no trainer named 'b'; there are: waiting, a"):
        live.client.explain("b")


def test_twenty_pilots_that_die_at_once_make_one_regroup(live: Pool) -> None:
    trainer, peers = live.running(22)
    survivors = peers[:2]
    for peer in peers:
        if peer not in survivors:
            peer.die()
    for peer in survivors:
        assert peer.hears(DissolveGroup).generation == 1
    assert form(survivors, trainer, step=5) == 2
    until(lambda: live.trainer(trainer).phase == "running")
    contents = read(live.run_dir / "journal.jsonl")
    losses = [d.event for d in contents.decisions if isinstance(d.event, PoolChanged) and d.event.lost]
    assert [len(event.lost) for event in losses] == [20]
    assert sum(isinstance(c, FormGroup) for d in contents.decisions for c in d.commands) == 2


def test_a_killed_peer_is_lost_at_once_and_its_broken_group_is_reported_once(live: Pool) -> None:
    trainer, peers = live.running(3)
    peers[1].say(wire.GroupBroken(trainer, 1, "a rank process died"))
    peers[2].die()
    for peer in peers[:2]:
        assert peer.hears(DissolveGroup).reason == "a member was lost"
    form(peers[:2], trainer, step=3)
    counts = until(lambda: (t := live.trainer(trainer)).phase == "running" and t)
    assert (counts.losses, counts.lost_steps) == (1, 0)


def test_a_pilot_with_notice_leaves_and_counts_as_preempted(live: Pool) -> None:
    trainer, peers = live.running(2)
    peers[1].say(wire.Noticed("SIGTERM", 5.0))
    join = peers[0].hears(wire.JoinGroup)
    assert (join.generation, join.nodes) == (2, 1)
    assert peers[1].hears(wire.LeaveGroup).generation == 2
    peers[0].say(wire.GroupFormed(trainer, 2, 7))
    peers[1].hears(StopWorker)
    peers[1].say(wire.WorkerExited(trainer, "stopped"))
    peers[1].hears(ReleaseNode)
    peers[1].die()
    until(lambda: len(live.nodes()) == 1)
    seen = live.trainer(trainer)
    assert (seen.preemptions, seen.losses, seen.rescales_down) == (1, 0, 1)


def test_a_drain_pauses_and_writes_before_the_nodes_go(live: Pool) -> None:
    trainer, peers = live.running(2)
    live.client.down()
    for peer in peers:
        assert peer.hears(PauseGroup).generation == 1
        peer.say(wire.RankPaused(trainer, 1, 9))
    for peer in peers:
        peer.hears(DissolveGroup)
    peers[0].hears(WriteCheckpoint)
    peers[0].say(wire.CheckpointWritten(trainer, 1, 9, asked=True, path="g1-s9.h5"))
    for peer in peers:
        peer.hears(StopWorker)
        peer.say(wire.WorkerExited(trainer, "stopped"))
        peer.hears(ReleaseNode)
        peer.die()
    assert live.ended() == 0
    assert sorted(p.name for p in live.run_dir.iterdir()) == [
        "coordinator.lock",
        "coordinator.log",
        "ended.json",
        "journal",
        "journal.jsonl",
        "pilots",
        "site.py",
        "trainers",
    ]
    assert read_end(live.run_dir / "ended.json") == Ended()


def test_a_drain_tells_whose_state_could_not_be_written(live: Pool) -> None:
    trainer, [peer] = live.running(1)
    live.client.down()
    peer.hears(PauseGroup)
    peer.say(wire.RankPaused(trainer, 1, 9))
    peer.hears(DissolveGroup)
    for _ in range(2):  # the second one comes after a pause
        peer.hears(WriteCheckpoint)
        peer.say(wire.CheckpointWritten(trainer, 1, 9, asked=True, error="no space left"))
    until(lambda: live.trainer(trainer).waits == f"writing a checkpoint, which has failed 2 of {WRITES_TRIED} times")
    peer.die()
    assert live.ended() == 0
    assert read_end(live.run_dir / "ended.json") == Ended(unsaved=(trainer,))


def test_a_group_that_does_not_form_in_time_is_broken_and_formed_again(tmp_path: Path) -> None:
    with pool(tmp_path, form_timeout_s=1) as live:
        peer = live.joined(1)[0]
        trainer = live.submit(name="a")
        warm(peer, trainer)
        assert peer.hears(wire.JoinGroup).generation == 1
        assert "not formed within 1 s" in peer.hears(DissolveGroup).reason
        assert peer.hears(wire.JoinGroup).generation == 2


def test_a_group_whose_ranks_have_joined_may_take_longer(tmp_path: Path) -> None:
    with pool(tmp_path, form_timeout_s=1) as live:
        peer = live.joined(1)[0]
        trainer = live.submit(name="a")
        warm(peer, trainer)
        assert peer.hears(wire.JoinGroup).generation == 1
        peer.say(wire.RankJoined(trainer, 1))
        assert not peer.has_news(3 * live.form_timeout_s)
        peer.say(wire.GroupFormed(trainer, 1, 0))
        until(lambda: live.trainer(trainer).phase == "running")


def test_a_silent_node_is_lost_after_the_sites_time(tmp_path: Path) -> None:
    with pool(tmp_path, silent_s=4) as live:
        peer = live.joined(1)[0]
        assert "silent" in peer.hears(wire.Forgotten).reason
        until(lambda: live.nodes() == [])
        back = Peer(live.file, peer.secret, peer.host)
        assert "counts as lost" in back.hears(wire.Forgotten).reason


def test_a_trainer_whose_nodes_are_all_silent_is_not_started_again_before_they_have_stopped(tmp_path: Path) -> None:
    with pool(tmp_path, silent_s=5, orphan_s=6) as live:
        holder, spare = live.joined(2)
        trainer = live.submit(name="a", max_nodes=1)
        warm(holder, trainer)
        since_s = live.client.status().now_s
        form([holder], trainer, resumed=0)
        until(lambda: live.trainer(trainer).phase == "running")

        def lost() -> bool:
            spare.say(wire.Heartbeat(0.0))
            return len(live.nodes()) == 1

        until(lost)
        assert live.client.status().now_s - since_s >= 6


@pytest.mark.parametrize("others", [0, 1])
def test_a_pilot_that_registers_just_before_the_pool_goes_down_is_released_at_once(tmp_path: Path, others: int) -> None:
    """A registration is held back for a moment, to batch concurrent ones: the drain overtakes it."""
    with pool(tmp_path) as live:
        peers = [Peer(live.file, f"p{n}", f"n{n}").welcomed() for n in range(others)]
        until(lambda: len(live.nodes()) == others)
        where = connection.load(live.file)
        user = Stream(where.address)
        user.send(wire.encode(wire.Credentials(wire.PROTOCOL, __version__, where.token)))
        late = Peer(live.file, "late", "late").welcomed()
        user.send(wire.encode(wire.Request("down")))
        for peer in [*peers, late]:
            peer.hears(ReleaseNode)
            peer.die()
        assert live.ended() == 0


def test_a_node_with_another_torch_is_reported_while_it_is_there(live: Pool) -> None:
    new, old = {"Python": "3.12.3", "torch": "2.9.1"}, {"Python": "3.12.3", "torch": "2.8.0"}
    peers = [Peer(live.file, f"p{number}", f"n{number}", versions=new).welcomed() for number in range(2)]
    assert live.client.nodes().remarks == []
    peers.append(Peer(live.file, "p2", "n2", versions=old).welcomed())
    line = until(lambda: live.client.status().remarks)[-1]
    assert line.startswith(
        f"{peers[2].node}: library versions differ from the pool's majority: torch 2.8.0 instead of 2.9.1; "
    )
    assert live.client.nodes().remarks == [line]
    assert line in live.log()
    peers[2].die()
    until(lambda: len(live.nodes()) == 2)
    assert live.client.status().remarks == []


def test_times_of_a_group_reach_the_core_and_unequal_shares_are_shown(live: Pool) -> None:
    trainer, peers = live.running(2)
    for _ in range(3):
        for peer, samples in zip(peers, (480, 240), strict=True):
            peer.say(wire.Heartbeat(0.0, {trainer: StepTimes(30, samples, 6.0, 10.0)}))
    shares = until(lambda: live.trainer(trainer).shares)
    assert shares == {peers[0].node: 16.0, peers[1].node: 8.0}

    def told() -> list[SpeedsMeasured]:
        decisions = read(live.run_dir / "journal.jsonl").decisions
        return [decision.event for decision in decisions if isinstance(decision.event, SpeedsMeasured)]

    (event,) = until(told)
    assert event.per_s == ((peers[0].node, 80.0), (peers[1].node, 40.0))
