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
from tests.unit.service.stage import A, B

ENROLMENT, OWN = Grant(Role.PILOT), Grant(Role.PILOT, Path("token"), "12")
SITE = Site(name="s", scheduler="local", heartbeat_s=1, silent_s=10, orphan_s=60)


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


def with_pilot(grant: Grant, job: str, restart: int) -> Roster:
    """A roster with the pilot A of ``job``."""
    made = Roster(SITE)
    made.register(0.0, A, peer(grant), hello("a", job, restart))
    return made


def lost(made: Roster, now_s: float, *together: NodeId) -> list[NodeId]:
    """Which nodes are lost by then, if ``together`` hold one trainer's state."""
    return [node for node, _ in made.lost(now_s, lambda node: together if node in together else ())]


def close(made: Roster, now_s: float, *nodes: NodeId) -> None:
    for node in nodes:
        connection = made.pilots[node].link
        assert connection is not None
        assert made.closed(now_s, connection) is made.pilots[node]


def test_a_closed_connection_is_a_loss_after_a_moment_or_at_once_after_a_notice() -> None:
    made = roster(A, B)
    close(made, 5.0, A)
    assert made.undecided(A)
    assert lost(made, 5.0 + AWAY_S / 2, A, B) == []
    assert lost(made, 5.0 + AWAY_S, A, B) == [A]
    made.pilots[A].leaving = "SIGTERM"
    assert lost(made, 5.0, A, B) == [A]


def test_a_pilot_that_comes_back_in_that_moment_is_not_lost() -> None:
    made = roster(A)
    close(made, 5.0, A)
    assert not made.register(5.1, A, peer(), hello("a"))
    assert lost(made, 9.0) == []
    assert not made.undecided(A)


def test_if_nobody_is_left_to_continue_there_is_no_hurry() -> None:
    made = roster(A, B)
    close(made, 5.0, A, B)
    assert lost(made, 5.0 + AWAY_S, A, B) == []
    assert lost(made, 5.0 + AWAY_ALONE_S, A, B) == [A, B]


@pytest.mark.parametrize("together", [(), (A, B)])
def test_a_silent_node_is_lost_after_the_sites_time(together: tuple[NodeId, ...]) -> None:
    made = roster(A, B)
    made.heard(9.0, made.pilots[B])
    assert lost(made, 9.9, *together) == []
    assert lost(made, 10.0, *together) == [A]


def test_if_all_holders_of_a_state_are_silent_they_are_lost_only_when_they_have_stopped() -> None:
    made = roster(A, B)
    assert lost(made, 60.0, A, B) == []
    assert lost(made, 61.0, A, B) == [A, B]


def test_nodes_that_are_expected_back_count_as_silent_since_the_restart() -> None:
    made = Roster(SITE)
    made.expect(100.0, [A, B])
    assert not made.register(101.0, A, peer(), hello("a"))
    made.heard(109.0, made.pilots[A])
    assert lost(made, 109.0, A, B) == []
    assert lost(made, 110.0, A, B) == [B]


ANOTHER = Grant(Role.PILOT, Path("another"))


@pytest.mark.parametrize(
    ("known", "comes", "now_s", "evicted"),
    [
        ((OWN, "12", 0), (OWN, "12", 1), 1.0, True),  # it was requeued
        ((OWN, "12", 0), (OWN, "12", 0), 1.0, False),
        ((OWN, "12", 0), (OWN, "", 0), 1.0, False),
        ((OWN, "12", 0), (ANOTHER, "12", 1), 1.0, False),
        ((OWN, "11", 7), (OWN, "12", 0), 1.0, True),  # it had taken the token of job 12
        ((ENROLMENT, "12", 0), (ENROLMENT, "12", 1), 1.0, False),  # a claim evicts nobody that answers
        ((ENROLMENT, "12", 0), (ENROLMENT, "12", 1), 1.0 + SITE.silent_s, True),
    ],
)
def test_earlier_lives_of_a_job_end(
    known: tuple[Grant, str, int], comes: tuple[Grant, str, int], now_s: float, evicted: bool
) -> None:
    made, (grant, job, restart) = with_pilot(*known), comes
    assert made.earlier_lives(now_s, grant, hello("b", job, restart)) == [A] * evicted


def test_with_the_enrolment_token_a_claim_evicts_a_pilot_whose_connection_is_closed() -> None:
    made = with_pilot(ENROLMENT, "12", 0)
    close(made, 1.0, A)
    assert made.earlier_lives(1.0, ENROLMENT, hello("b", "12", 1)) == [A]


def test_the_others_of_a_job() -> None:
    made = with_pilot(OWN, "12", 3)
    assert made.others(OWN, A, hello("a", "12")) == made.others(OWN, B, hello("b", "13")) == []
    assert made.others(OWN, B, hello("b", "12")) == [Living(A, 3)]


def test_a_lost_node_is_remembered() -> None:
    made = roster(A)
    made.remove(A, "silent")
    assert made.gone == {A: "silent"}
    assert made.at(peer()) is None


def test_while_the_coordinator_is_stopped_nobody_is_silent_or_away_for_long() -> None:
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
