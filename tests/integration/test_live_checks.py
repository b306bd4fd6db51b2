"""The check of a script, as a coordinator and its pilots speak about it."""

from __future__ import annotations

import pytest

from pilot.core.commands import CheckScript
from pilot.core.errors import UserError
from pilot.core.trainer.spec import Checking
from pilot.protocol import wire
from tests.integration.live_pool import Peer, Pool, form, until, warm


def asked(live: Pool, peers: list[Peer]) -> tuple[str, Peer, Peer]:
    """A trainer of two nodes at most on one of two ``peers``, which is asked to check its script; and the other one."""
    until(lambda: len(live.nodes()) == len(peers))
    trainer = live.submit(name="a", max_nodes=2, check=Checking.AUTO)
    (node,) = until(lambda: live.trainer(trainer).target)
    peer, other = sorted(peers, key=lambda one: one.node != node)
    warm(peer, trainer)
    assert form([peer], trainer, resumed=0) == 1
    assert peer.hears(CheckScript).trainer == trainer
    return trainer, peer, other


def test_a_check_that_was_asked_for_is_asked_for_again_after_a_restart(live: Pool) -> None:
    trainer, peer, _ = asked(live, live.joined(2))
    live.restart()
    assert live.trainer(trainer).check == "running"
    worker = (trainer, live.trainer(trainer).uid, 1, 50, True)
    peer.die()
    peer = Peer(live.file, peer.secret, peer.host, workers=[worker]).welcomed()
    assert peer.hears(CheckScript).trainer == trainer
    peer.say(wire.ScriptChecked(trainer, "differs", "its loss\nis a sum"))
    differs = until(lambda: (t := live.trainer(trainer)).check == "differs" and t)
    assert differs.check_text == "stays on one node: its loss is a sum"
    assert differs.target == [peer.node]
    live.replays()


def test_only_the_node_that_was_asked_answers_and_the_trainer_grows(live: Pool) -> None:
    trainer, peer, other = asked(live, live.joined(2))
    other.say(wire.ScriptChecked(trainer, "differs", "it is not asked"))
    peer.say(wire.ScriptChecked(trainer, "passed", "18 steps train the same"))
    assert other.hears(wire.StartWorker).trainer == trainer
    assert live.trainer(trainer).check_text == "checked: 18 steps train the same"


def test_what_cannot_be_checked_is_refused_where_that_is_required(live: Pool) -> None:
    with pytest.raises(UserError, match="it needs at least 2 nodes; with --check auto it grows unchecked"):
        live.submit(name="a", min_nodes=2, check=Checking.REQUIRE)
    name = live.submit(name="a", min_nodes=2, check=Checking.AUTO)
    assert live.trainer(name).check_text == "unchecked: it needs at least 2 nodes"
