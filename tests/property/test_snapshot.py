"""A snapshot holds everything that a coordinator knows: a core restored from one is equal in every field, and stays
equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pilot.core.config import State
from pilot.core.coordinator import Coordinator
from pilot.core.events import PoolChanged, TrainerSubmitted
from pilot.core.ids import NodeId, TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.rundir import segments
from pilot.service.durability.restore import Books
from tests.property import test_studies
from tests.property.test_core import act, play, scripts
from tests.property.world import World

GIVEN = {"_configs", "_order"}
"""Passed in when a core is created: functions and settings."""
OF_ONE_EVENT = {"_touched", "_vacant", "_replan", "_reach", "_by_rates"}
"""Reset by each event."""


def walked(value: Any, path: str = "") -> Iterator[tuple[str, object]]:
    """Every value reachable from ``value``, with its path; objects field by field, dicts in order."""
    if isinstance(value, str | int | float | bool | None | Enum):
        yield path, value
    elif isinstance(value, dict):
        yield path, list(value)
        for key, item in value.items():
            yield from walked(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple | set):
        yield path, type(value)
        for number, item in enumerate(value):
            yield from walked(item, f"{path}[{number}]")
    else:
        yield path, type(value)
        slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())}
        for name in sorted({*slots, *getattr(value, "__dict__", {})} - GIVEN - OF_ONE_EVENT):
            yield from walked(getattr(value, name), f"{path}.{name}")


def gone_on(core: Coordinator) -> Coordinator:
    """Another core, restored from the bytes of this one's state."""
    made = Coordinator(core.config)
    made.restore(segments.state_of(segments.state_bytes(core)))
    return made


@settings(max_examples=150, deadline=None)
@given(scripts, scripts)
def test_a_core_that_goes_on_from_a_snapshot_is_the_same_in_every_field_and_does_the_same(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    world = play(before)
    other = gone_on(world.core)
    assert list(walked(other)) == list(walked(world.core))
    assert segments.state_bytes(other) == segments.state_bytes(world.core)
    known = len(world.history)
    for action, number in after:
        act(world, action, number)
    for now_s, event, commands in world.history[known:]:
        assert other.handle(now_s, event) == commands
    assert segments.state_digest(other) == segments.state_digest(world.core)


@settings(max_examples=50, deadline=None)
@given(scripts)
def test_so_are_the_books(script: list[tuple[str, int]]) -> None:
    books = Books()
    for entry in play(script).history:
        books.note(*entry)
    books.monitor.remark(1e6, {"text": "seen"})
    data = msgspec.msgpack.encode(books)
    assert list(walked(msgspec.msgpack.decode(data, type=Books))) == list(walked(books))


@settings(max_examples=100, deadline=None)
@given(st.one_of(scripts.map(play), test_studies.scripts.map(test_studies.play)))
def test_a_replay_gives_the_same_commands_and_reaches_the_same_bytes(world: World) -> None:
    fresh = Coordinator(world.config)
    for now_s, event, commands in world.history:
        assert fresh.handle(now_s, event) == commands
    assert segments.state_bytes(fresh) == segments.state_bytes(world.core)


def test_every_field_of_the_core_is_written_down() -> None:
    """Finds a field that was added but forgotten in the snapshot, even if it still has its initial value."""
    core = Coordinator()
    kept = {item.name for item in fields(State)}
    assert set(vars(core)) == kept | {"_registry", "_studies"} | GIVEN - {"_order"} | OF_ONE_EVENT
    core.handle(0.0, PoolChanged(joined=(NodeId("n"),)))
    core.handle(1.0, TrainerSubmitted(TrainerSpec(TrainerId("t"))))
    plain = msgspec.to_builtins(core.snapshot(), builtin_types=())
    for owner, data in ((core.pool, plain["pool"]), (core.blame, plain["blame"]), (core.trainers["t"], None)):
        assert is_dataclass(owner)
        given = {"_order", "_topology", "_keys", "of_type", "_pool", "_trainers"}
        own = {*getattr(owner, "__dict__", {}), *getattr(type(owner), "__slots__", ())} - given
        assert own == set(data if data is not None else plain["trainers"]["t"]), type(owner)


def test_the_walk_sees_a_field_that_differs() -> None:
    world = World()
    world.join(2)
    other = gone_on(world.core)
    other.pool.joined += 1
    assert list(walked(other)) != list(walked(world.core))
