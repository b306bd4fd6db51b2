"""One serializer, two containers and a copy: whatever a state holds comes back with its types and bits."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from pilot.checkpoint import store
from pilot.checkpoint.tree import copied, encode
from pilot.train.state.block import Packed, unpack
from tests.unit.checkpoint.states import difference, states

RoundTrip = Callable[[dict[str, Any]], dict[str, Any]]


def through_a_block(state: dict[str, Any]) -> dict[str, Any]:
    """As it is sent between ranks."""
    block = Packed(encode(state)).to_bytes()
    return unpack(block)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """As it is saved."""
    with tempfile.TemporaryDirectory() as directory:
        written = store.write(Path(directory), 1, 1, state, kept=1)
        assert store.verify(written.path) == []
        return store.load(written.path).state


@pytest.mark.parametrize("round_trip", [through_a_block, through_a_file, copied])
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state=states)
def test_any_state_comes_back_bit_for_bit(round_trip: RoundTrip, state: dict[str, Any]) -> None:
    assert difference(state, round_trip(state)) is None


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(state=states)
def test_sent_states_can_be_saved_and_saved_ones_sent(state: dict[str, Any]) -> None:
    assert difference(state, through_a_file(through_a_block(state))) is None
    assert difference(state, through_a_block(through_a_file(state))) is None
