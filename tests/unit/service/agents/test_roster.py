"""When a node counts as lost: the table in :mod:`pilot.service.agents.roster`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pilot.core.ids import NodeId
from pilot.protocol import wire
from pilot.protocol.connection import client_context
from pilot.protocol.transport import Link
from pilot.service.agents.admission import Grant, Living, Role
from pilot.service.agents.roster import AWAY_ALONE_S, AWAY_S, Roster
from pilot.service.agents.server import UNPROVEN, Peer
from pilot.site.site import Site

ENROLMENT = Grant(Role.PILOT)
SITE = Site(name="s", scheduler="local", heartbeat_s=1, silent_s=10, orphan_s=60)
A, B = NodeId("h.a"), NodeId("h.b")


def hello(pilot: str, job: str = "", restart: int = 0) -> wire.Hello:
    return wire.Hello(pilot, "secret", "h", "127.0.0.1", 1, job=job, restart=restart)


class Deaf:
    """Nothing comes on these links."""

    def received(self, link: Link, frame: bytes) -> None:
        pass

    def closed(self, link: Link, reason: str) -> None:
        pass


def peer(grant: Grant = ENROLMENT) -> Peer:
    async def link() -> Link:
        return Link(client_context(), Deaf(), UNPROVEN)

    return Peer(asyncio.run(link()), grant)


def roster(*nodes: NodeId) -> Roster:
    made = Roster(SITE)
    for node in nodes:
        assert made.register(0.0, node, peer(), hello(node))
    return made


def lost(made: Roster, now_s: float, *together: NodeId) -> list[NodeId]:
    """Which nodes are lost by then, if ``together`` hold one trainer's state."""
    return [node for node, _ in made.lost(now_s, lambda node: together if node in together else ())]


def close(made: Roster, now_s: float, node: NodeId) -> None:
    connection = made.pilots[node].link
    assert connection is not None
    assert made.closed(now_s, connection) is made.pilots[node]


def test_a_closed_connection_is_a_loss_after_a_moment() -> None:
    made = roster(A, B)
    close(made, 5.0, A)
    assert made.undecided(A)
    assert lost(made, 5.0 + AWAY_S / 2, A, B) == []
    assert lost(made, 5.0 + AWAY_S, A, B) == [A]


def test_who_comes_back_in_that_moment_is_not_lost() -> None:
    made = roster(A)
    close(made, 5.0, A)
    assert not made.register(5.1, A, peer(), hello("a"))
    assert lost(made, 9.0) == []
    assert not made.undecided(A)


def test_a_closed_connection_after_a_notice_is_a_loss_at_once() -> None:
    made = roster(A, B)
    made.pilots[A].leaving = "SIGTERM"
    close(made, 5.0, A)
    assert lost(made, 5.0, A, B) == [A]


def test_where_nobody_is_left_to_go_on_there_is_no_hurry() -> None:
    made = roster(A, B)
    close(made, 5.0, A)
    close(made, 5.0, B)
    assert lost(made, 5.0 + AWAY_S, A, B) == []
    assert lost(made, 5.0 + AWAY_ALONE_S, A, B) == [A, B]


@pytest.mark.parametrize("together", [(), (A, B)])
def test_a_silent_node_is_lost_after_the_sites_time(together: tuple[NodeId, ...]) -> None:
    made = roster(A, B)
    made.heard(9.0, made.pilots[B])
    assert lost(made, 9.9, *together) == []
    assert lost(made, 10.0, *together) == [A]


def test_when_all_holders_of_a_state_are_silent_they_are_lost_only_when_they_have_stopped() -> None:
    made = roster(A, B)
    assert lost(made, 60.0, A, B) == []
    assert lost(made, 61.0, A, B) == [A, B]


def test_who_is_expected_back_counts_as_silent_since_the_restart() -> None:
    made = Roster(SITE)
    made.expect(100.0, [A, B])
    assert not made.register(101.0, A, peer(), hello("a"))
    made.heard(109.0, made.pilots[A])
    assert lost(made, 109.0, A, B) == []
    assert lost(made, 110.0, A, B) == [B]


def test_a_requeued_job_ends_its_earlier_life() -> None:
    own = Grant(Role.PILOT, Path("token"), "12")
    made = Roster(SITE)
    made.register(0.0, A, peer(own), hello("a", job="12", restart=0))
    assert made.earlier_lives(1.0, own, hello("b", job="12", restart=1)) == [A]
    assert made.earlier_lives(1.0, own, hello("b", job="12", restart=0)) == []
    assert made.earlier_lives(1.0, own, hello("b")) == []
    assert made.earlier_lives(1.0, Grant(Role.PILOT, Path("another")), hello("b", job="12", restart=1)) == []


def test_who_has_taken_a_jobs_token_goes_when_the_job_comes() -> None:
    own = Grant(Role.PILOT, Path("token"), "12")
    made = Roster(SITE)
    made.register(0.0, A, peer(own), hello("a", job="11", restart=7))
    assert made.others(own, B, hello("b", job="12")) == []
    assert made.earlier_lives(1.0, own, hello("b", job="12")) == [A]


def test_with_the_enrolment_token_a_claim_evicts_nobody_who_answers() -> None:
    made = Roster(SITE)
    made.register(0.0, A, peer(), hello("a", job="12", restart=0))
    assert made.earlier_lives(1.0, ENROLMENT, hello("b", job="12", restart=1)) == []
    assert made.earlier_lives(1.0 + SITE.silent_s, ENROLMENT, hello("b", job="12", restart=1)) == [A]
    close(made, 1.0, A)
    assert made.earlier_lives(1.0, ENROLMENT, hello("b", job="12", restart=1)) == [A]


def test_the_others_of_a_job() -> None:
    own = Grant(Role.PILOT, Path("token"), "12")
    made = Roster(SITE)
    made.register(0.0, A, peer(own), hello("a", job="12", restart=3))
    assert made.others(own, A, hello("a", job="12")) == []
    assert made.others(own, B, hello("b", job="12")) == [Living(A, 3)]


def test_a_lost_node_is_remembered() -> None:
    made = roster(A)
    made.remove(A, "silent")
    assert made.gone == {A: "silent"}
    assert made.at(peer()) is None


def test_while_the_coordinator_does_not_listen_nobody_is_silent_or_away_for_long() -> None:
    made = roster(A, B)
    close(made, 5.0, B)
    made.excuse(35.0, 29.9)
    assert lost(made, 35.0, A, B) == []
    assert lost(made, 35.1 + AWAY_S, A, B) == [B]
    assert made.pilots[A].heard_s == 29.9


def test_a_loop_that_is_a_little_late_excuses_nobody() -> None:
    made = roster(A)
    made.excuse(10.0, 0.5)
    assert lost(made, 10.0) == [A]
