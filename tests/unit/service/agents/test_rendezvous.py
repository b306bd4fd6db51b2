"""The ranks of a forming group find each other, and a pilot speaks only for its own rank."""

from __future__ import annotations

import pytest

from pilot.core.commands import FormGroup
from pilot.core.events import GroupBroken
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.protocol.wire import GroupAddresses, Message, RankAddress, RankJoined
from pilot.service.agents.members import Rendezvous
from pilot.service.agents.pending import Given, PendingCommands

T = TrainerId("t1")
A, B, C = map(NodeId, "abc")


class Bench:
    """A group of ``A`` and ``B`` forms in generation 1."""

    def __init__(self) -> None:
        self.pending = PendingCommands()
        self.pending.forming[T, Generation(1)] = Given(FormGroup(T, Generation(1), (A, B), None, ""), 0.0)
        self.sent: list[tuple[NodeId, Message]] = []
        self.broken: list[GroupBroken] = []
        self.rendezvous = Rendezvous(self.pending, lambda *sent: self.sent.append(sent))

    def say(self, node: NodeId, puts: dict[str, str], generation: int = 1) -> None:
        self.broken += self.rendezvous.arrived(node, RankAddress(T, generation, puts, f"{node}:1"))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_are_told_when_all_have_arrived_and_again_at_the_next_barrier(bench: Bench) -> None:
    for value in ("first", "second"):
        bench.say(B, {"b": value})
        assert bench.sent == []
        bench.say(A, {"a": value})
        table = GroupAddresses(T, 1, {"b": value, "a": value}, ["a:1", "b:1"])
        assert bench.sent == [(A, table), (B, table)]
        bench.sent.clear()


def test_strangers_and_other_generations_are_not_heard(bench: Bench) -> None:
    bench.say(C, {"c": "x"})
    bench.say(A, {"a": "x"}, generation=2)
    bench.say(A, {"a": "x"})
    assert (bench.sent, bench.broken) == ([], [])


def test_the_leader_says_for_all_that_they_have_joined(bench: Bench) -> None:
    of = T, Generation(1)
    for node, generation in ((C, 1), (B, 1), (A, 2)):
        bench.rendezvous.joined(node, RankJoined(T, generation))
        assert not bench.rendezvous.have_met(of)
    bench.rendezvous.joined(A, RankJoined(T, 1))
    assert bench.rendezvous.have_met(of)
    bench.pending.forming.clear()
    bench.rendezvous.joined(A, RankJoined(T, 1))
    assert not bench.rendezvous.have_met(of)


def test_what_a_generation_has_put_goes_with_it(bench: Bench) -> None:
    bench.say(A, {"a": "x"})
    bench.pending.forming.clear()
    bench.say(B, {"b": "x"})
    bench.pending.forming[T, Generation(2)] = Given(FormGroup(T, Generation(2), (A, B), None, ""), 0.0)
    bench.say(B, {"b": "y"}, generation=2)
    assert bench.sent == []
    bench.say(A, {"a": "y"}, generation=2)
    assert bench.sent[0] == (A, GroupAddresses(T, 2, {"b": "y", "a": "y"}, ["a:1", "b:1"]))


@pytest.mark.parametrize(
    ("puts", "reason"),
    [
        ({"a": "mine"}, "b: it sent an address key of another rank"),
        ({"b": "x\ncmd=barrier_out"}, "b: PMI: not a key and a value"),
        ({"b c": "x"}, "b: PMI: not a key and a value"),
        ({f"b{i}": "x" for i in range(100)}, "b: it sent 100 keys"),
    ],
)
def test_a_group_with_a_liar_is_broken(bench: Bench, puts: dict[str, str], reason: str) -> None:
    bench.say(A, {"a": "x"})
    bench.say(B, puts)
    assert bench.sent == []
    assert [event.reason[: len(reason)] for event in bench.broken] == [reason]
