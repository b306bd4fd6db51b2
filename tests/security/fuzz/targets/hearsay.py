"""What a pilot says of trainers that it does not run, and of its own: the others' stay as they are, texts are lines."""

from __future__ import annotations

import asyncio
import random
import re
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pilot.core.commands import Command
from pilot.core.coordinator import Coordinator
from pilot.core.events import Event, GroupFormed, PlanReady, PoolChanged, TrainerSubmitted, WorkerReady
from pilot.core.ids import Generation, NodeId, TrainerId
from pilot.core.plan.problem import Plan, PlanStatus
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol import wire
from pilot.service.agents.admission import Grant, Role
from pilot.service.agents.roster import Roster
from pilot.service.agents.server import Peer
from pilot.service.durability.live_driver import Clock, LiveDriver
from pilot.service.service import Service
from pilot.site.site import Site
from tests.security.fuzz.mutate import texts
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, Wrong

OWN, OTHERS = TrainerId("own"), TrainerId("others")
HERE, THERE = NodeId("host.here"), NodeId("host.there")
TEXTS = [
    "", "a word", "two\nlines", "\x1b]0;owned\x07", "\u2028forged", "\u202ereversed", "\x85", "\ud800", "x" * 20_000,
]  # fmt: skip
LAST_WORDS = re.compile(r"\n(last words|\(log: )")
NUMBERS = [0, 1, 2, 77, 2**53]
ODD = [2**53 + 1, 2**64 - 1, -1, None, [], {}]
FLOATS = [0.0, 1.0, -1.0, 5e-324, 1e300, float("inf"), float("-inf"), float("nan")]
LIKELY: dict[str, list[Any]] = {
    "trainer": [OWN, OWN, OTHERS, OTHERS, "nobody"],
    "generation": [1, 1, 0, 2],
    "step": [1, 77],
    "cause": ["died", "raised", "stopped", *TEXTS],
    "detail": [f"{text}\nlast words" for text in TEXTS],
    "seen": ["slow", "lost", *TEXTS],
    "endpoint": ["127.0.0.1:1"],
    "puts": [{"rank-0": "address"}],
    "ranks": [[0], [0] * 50, [2**53]],
    "ledger": [[], [[1, 0, 0, 1, 0, 1]] * 40],
    "reports": [[], [[1, 0.5]]],
    "identity": [{}, *({text[:256]: text[:1000]} for text in TEXTS)],
    "accepted": [[], *([[1, text[:256], text[:1000], ""]] for text in TEXTS)],
    "metrics": [{}, *({text: 1.0} for text in TEXTS)],
    "step_times": [{name: [1, 1, 1.0, 1.0]} for name in (OWN, OTHERS, "nobody")],
    "times": [[1, 1, 1.0, 1.0]],
    "resumed": [None, 0],
}
KINDS: list[type[wire.Message]] = [kind for kind in wire.FROM_AGENT if kind is not wire.Hello]


@dataclass
class Journal:
    """Keeps what would be written."""

    kept: list[Any] = field(default_factory=list)
    trouble = ""
    waiting_bytes = 0
    segment_is_long = False

    @property
    def last_seq(self) -> int:
        return len(self.kept)

    def decided(self, _now_s: float, event: Event, commands: list[Command]) -> Future[None]:
        self.kept.append(msgspec.to_builtins([event, *commands]))
        return Future()

    def note(self, _now_s: float, note: dict[str, Any]) -> None:
        self.kept.append(note)


class Deaf:
    """Stands for what only receives."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_arguments, **_named: True


def make(rng: random.Random, _number: int) -> list[bytes]:
    """A few messages of one pilot; most could be true of somebody."""
    return [_message(rng, rng.choice(KINDS)) for _ in range(rng.choice((1, 3, 10)))]


def _message(rng: random.Random, kind: type[wire.Message]) -> bytes:
    told: dict[str, Any] = {"type": kind.__name__}
    for each in msgspec.structs.fields(kind):
        told[each.name] = rng.choice(LIKELY.get(each.name) or _values(each.type))
    if rng.random() < 0.05:
        told[rng.choice(sorted(told))] = rng.choice([*TEXTS[:2], *FLOATS, *ODD])
    return msgspec.msgpack.encode({name: _sendable(value) for name, value in told.items()})


def _values(annotation: Any) -> list[Any]:
    text = str(annotation)
    return TEXTS if "str" in text else [True, False] if "bool" in text else FLOATS if "float" in text else NUMBERS


def _sendable(value: Any) -> Any:
    """UTF-8 has no lone surrogates: a peer that sends one is refused."""
    match value:
        case str():
            return value.encode("utf-8", "replace").decode()
        case dict():
            return {_sendable(name): _sendable(inner) for name, inner in value.items()}
        case list():
            return [_sendable(inner) for inner in value]
    return value


def attempt(_place: None, frames: list[bytes]) -> str:
    """Only what the pilot runs has changed afterwards, and no text in the journal can forge a line."""
    return asyncio.run(_attempt(frames))


async def _attempt(frames: list[bytes]) -> str:
    core, journal = Coordinator(), Journal()
    driver = LiveDriver(core, journal, Clock())  # type: ignore[arg-type]  # stands for what is not asked here
    roster = Roster(Site(name="fuzz", scheduler="local", interface="lo"))
    deaf: Any = Deaf()
    service = Service(
        roster.site, "fuzz", deaf, server=deaf, driver=driver, roster=roster, launches=deaf, solver=deaf, sampler=deaf,
        requests=deaf, jobs=deaf,
    )  # fmt: skip
    peers = [_registered(roster, node) for node in (HERE, THERE)]
    _begin(driver)
    before, begun = _state(driver), len(journal.kept)
    for frame in frames:
        service.received(peers[0], wire.decode_from_agent(frame))
    service._pass_time(driver.clock() + 1.0)
    if _state(driver) != before:
        raise Wrong(f"it changed what another pilot runs: {before} became {_state(driver)}")
    new = journal.kept[begun:]
    for text in texts(new):
        if not all(line.isprintable() for line in text.split("\n")) or ("\n" in text and not LAST_WORDS.search(text)):
            raise Wrong(f"this can forge a line: {text[:200]!r}")
    return ACCEPTED if new else REFUSED


def _registered(roster: Roster, node: NodeId) -> Peer:
    peer = Peer(Deaf(), Grant(Role.PILOT))  # type: ignore[arg-type]  # stands for what is not asked here
    roster.register(0.0, node, peer, wire.Hello(node, "s", "host", "127.0.0.1", 1))
    return peer


def _begin(driver: LiveDriver) -> None:
    """Each node trains its trainer."""
    driver.post(PoolChanged(joined=(HERE, THERE)))
    for trainer in (OWN, OTHERS):
        driver.post(TrainerSubmitted(TrainerSpec(trainer, 1, 1)))
    driver.post(PlanReady(driver.core.plan_id, Plan(PlanStatus.OPTIMAL, ((OWN, 1), (OTHERS, 1)), 0.0)))
    for trainer in (OWN, OTHERS):
        (node,) = driver.core.trainers[trainer].workers
        driver.post(WorkerReady(trainer, node))
        driver.post(GroupFormed(trainer, Generation(1), 0))
    assert list(driver.core.trainers[OWN].workers) == [HERE]


def _state(driver: LiveDriver) -> str:
    """All that is known of the other pilot's trainer, but not when it was last planned for: a pilot's rates may ask for
    a plan."""
    core, pending = driver.core, driver.pending
    waits = (pending.starting, pending.stopping, pending.forming, pending.pausing, pending.examining, pending.writing)
    held = [key for waiting in waits for key in waiting if key[0] == OTHERS]
    return re.sub(r"_now_s=[^,]*", "", repr((core.trainers[OTHERS], driver.monitor.trainers[OTHERS], held)))


TARGET = Target("what a pilot says of trainers", 2000, 120, attempt, make)
