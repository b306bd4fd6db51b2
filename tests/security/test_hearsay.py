"""What a pilot says of others' trainers is not heard, what it says is a line, and it cannot fill the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from click.testing import CliRunner

from pilot.cli.events import command as events
from pilot.protocol import wire
from pilot.protocol.fields import StepTimes
from pilot.service.agents import intake
from tests.integration.live_pool import Peer, Pool, form, until, warm
from tests.security.fuzz.mutate import texts

FORGED = "honest\n2026-01-01 00:00:00  pool: forged\u2028forged\x1b[2Jforged"
REMARKS = 5000


@contextmanager
def trains(live: Pool, name: str) -> Iterator[tuple[Peer, str, int]]:
    """A pilot, its trainer, and the generation in which that trains."""
    peer = Peer(live.file, name).welcomed()
    trainer = live.submit(name=f"of-{name}", max_nodes=1)
    warm(peer, trainer)
    yield peer, trainer, form([peer], trainer)
    live.client.cancel(trainer)
    peer.die()
    until(lambda: live.nodes() == [])


def journal(live: Pool) -> list[Any]:
    return [json.loads(line) for line in (live.run_dir / "journal.jsonl").read_text().splitlines()]


def size(live: Pool) -> int:
    return sum(path.stat().st_size for path in live.run_dir.glob("journal*") if path.is_file())


def all_about(trainer: str, generation: int) -> list[wire.FromAgent]:
    """Each kind of message that names a trainer."""
    of = (trainer, generation)
    return [
        wire.WorkerReady(trainer, 0.1),
        wire.CodeLoaded(trainer, {"/hearsay.py": "0" * 64}),
        wire.ReplicaAddresses(trainer, 1, {"hearsay": b"hearsay"}),
        wire.WorkerExited(trainer, "died", "hearsay"),
        wire.RankAddress(*of, {"rank-0": "hearsay"}, "127.0.0.1:1"),
        wire.RankJoined(*of),
        wire.PeersUnreached(*of, [0]),
        wire.GroupFormed(*of, 77),
        wire.GroupBroken(*of, "hearsay"),
        wire.RankPaused(*of, 77),
        wire.RankStalled(*of, 77, 60.0, summing=True),
        wire.RankExamined(*of, "slow", "hearsay"),
        wire.CheckpointWritten(*of, 77, asked=False, error="hearsay"),
        wire.CheckpointWritten(*of, 77, asked=True, path="/hearsay", alone_s=1.0),
        wire.ScriptChecked(trainer, "passed", "hearsay"),
        wire.Progress(*of, 77, 0, 770, metrics={"hearsay": 1.0}),
        wire.TrainerFinished(*of, 77, 770),
        wire.Remark(trainer, "hearsay"),
    ]


def test_nothing_is_heard_of_a_trainer_that_the_pilot_does_not_run(live: Pool) -> None:
    kinds = {type(message) for message in all_about("t", 1)}
    about_itself, to_its_agent = {wire.Hello, wire.Heartbeat, wire.Noticed}, {wire.RankStepTimes, wire.ScriptRaised}
    assert kinds | about_itself | to_its_agent == set(wire.FROM_AGENT)
    with trains(live, "other") as (other, own, _), trains(live, "victim") as (_, trainer, generation):
        before = live.trainer(trainer)
        for message in all_about(trainer, generation):
            other.say(message)
        other.say(wire.Heartbeat(1.0, {trainer: StepTimes(1, 1, 1.0, 1.0)}))
        other.say(wire.Remark(own, "the last"))
        until(lambda: live.trainer(own).remarks)
        now = live.trainer(trainer)
        other.die()
        assert (now.phase, now.step, now.remarks) == (before.phase, before.step, [])
        assert "hearsay" not in json.dumps(journal(live))
        assert "hearsay" not in live.log()


def test_texts_are_lines_in_the_journal_and_for_people(live: Pool) -> None:
    with trains(live, "teller") as (peer, trainer, generation):
        peer.say(wire.Remark(trainer, FORGED))
        peer.say(wire.Progress(trainer, generation, 5, 0, 50, metrics={FORGED: 1.0}))
        peer.say(wire.CheckpointWritten(trainer, generation, 5, asked=False, error=FORGED))
        peer.say(wire.WorkerExited(trainer, "died", f"last words:\n{FORGED}", FORGED))
        peer.say(wire.Noticed(FORGED, 1.0))
        until(lambda: len(forged(live)) > 4)
    shown = CliRunner().invoke(events, ["--run-dir", str(live.run_dir)], catch_exceptions=False).output
    assert shown.count("forged") > 3
    assert not [line for line in shown.splitlines() if line.startswith("2026-01-01")]
    assert all(line.isprintable() for text in forged(live) for line in text.split("\n"))
    assert all("\n" not in text for text in forged(live) if "last words" not in text)


def forged(live: Pool) -> list[str]:
    """The forged texts in the journal."""
    return [text for entry in journal(live) for text in texts(entry) if "forged" in text]


def test_thousands_of_remarks_are_told_of_in_one_line(live: Pool) -> None:
    with trains(live, "gossip") as (peer, trainer, _):
        before = size(live)
        for number in range(REMARKS):
            peer.say(wire.Remark(trainer, f"{number} {'x' * 100}"))
        peer.say(wire.Heartbeat(7.0))
        while peer.socket.recv() != wire.encode(wire.HeartbeatSeen(7.0)):
            pass
        until(lambda: "were dropped" in live.log(), 30)
        assert size(live) - before < 100_000
        assert live.log().count("were dropped") == 1
        assert peer.node in live.nodes()
        assert len(live.trainer(trainer).remarks) > 0


def test_what_was_dropped_is_told_once_a_minute_and_counted() -> None:
    quota, remark = intake.Quota(), wire.Remark("t", "x")
    taken = sum(quota.allows(0.0, remark) for _ in range(REMARKS))
    assert taken == intake.WORDS_AT_ONCE
    assert quota.warning(0.0, "n").startswith(f"{REMARKS - taken} messages of n were dropped")
    quota.allows(1.0, remark)
    quota.allows(1.0, remark)
    assert not quota.warning(intake.WARN_EVERY_S - 1, "n")
    assert quota.warning(intake.WARN_EVERY_S, "n").startswith("2 messages")
    progress = wire.Progress("t", 1, 1, 0, 1)
    assert quota.allows(2.0, progress), "facts have places of their own"
    large = msgspec.structs.replace(progress, ledger=[(1, 0, 0, 1, 0, 1)] * 100_000)
    assert not quota.allows(2.0, large)
