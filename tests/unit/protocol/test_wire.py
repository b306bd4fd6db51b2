"""The decoders accept any bytes: they return one of our messages or raise a ``ProtocolError``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.core.commands import ExamineGroup
from pilot.core.errors import ProtocolError
from pilot.protocol import wire
from pilot.submission.submission import LaunchSpec

DECODERS: list[Callable[[bytes], Any]] = [
    wire.decode_credentials,
    wire.decode_from_agent,
    wire.decode_from_cli,
    wire.decode_at_agent,
    wire.decode_at_cli,
]

SAMPLES: list[wire.Sent] = [
    wire.Credentials(1, "0.1.0", "token"),
    wire.Hello("p1", "secret", "host", "10.0.0.1", 42, workers=[("t", "ab12", 3, 7, True)]),
    wire.Progress("t", 1, 2, 0, 64, 10.0, ledger=[(1, 0, 0, 2, 0, 64)], metrics={"loss": 0.5}),
    wire.Request("submit", {"script": "s.py", "curve": [[1, 2.0]]}),
    wire.RankStalled("t", 1, 7, 30.5, summing=True),
    wire.RankExamined("t", 1, "slow", "it computes"),
    wire.Welcome("n", "pool", 1.0, 2.0, 3.0, 4.0),
    wire.HeartbeatSeen(12.5),
    ExamineGroup("t", 1, (), "", True),
    wire.StartWorker("t", "ab12", "/d", LaunchSpec("s.py", "ab", ["x"], "/", "python", {"A": "b"}), 60.0, 3),
    wire.Reply(result={"a": [1, None, "x"]}),
]

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def takes(decode: Callable[[bytes], Any], frame: bytes) -> None:
    with suppress(ProtocolError):
        assert isinstance(decode(frame), wire.Sent)


@pytest.mark.parametrize("decode", DECODERS)
@given(frame=st.binary(max_size=300))
def test_any_bytes(decode: Callable[[bytes], Any], frame: bytes) -> None:
    takes(decode, frame)


@pytest.mark.parametrize("decode", DECODERS)
@given(sample=st.sampled_from(SAMPLES), position=st.integers(0, 400), change=st.binary(min_size=1, max_size=4))
def test_messages_with_some_bytes_changed(
    decode: Callable[[bytes], Any], sample: wire.Message, position: int, change: bytes
) -> None:
    frame = wire.encode(sample)
    position %= len(frame)
    takes(decode, frame[:position] + change + frame[position + len(change) :])


@pytest.mark.parametrize("decode", DECODERS)
@given(kind=st.sampled_from([type(s).__name__ for s in SAMPLES]), fields=st.dictionaries(st.text(), plain))
def test_well_formed_frames_with_any_fields(decode: Callable[[bytes], Any], kind: str, fields: dict[str, Any]) -> None:
    takes(decode, msgspec.msgpack.encode({"type": kind, **fields}))


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    with pytest.raises(ProtocolError):
        wire.decode_from_agent(b"\x91" * depth)


def test_an_oversized_frame_is_refused() -> None:
    with pytest.raises(ProtocolError, match="larger than"):
        wire.decode_from_agent(b"\xc0" * (wire.MAX_FRAME_BYTES + 1))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: type(s).__name__)
def test_messages_come_back(sample: wire.Message) -> None:
    came = []
    for decode in DECODERS:
        with suppress(ProtocolError):
            came.append(decode(wire.encode(sample)))
    assert came == [sample]


@pytest.mark.parametrize("order", [s for s in SAMPLES if isinstance(s, ExamineGroup | wire.StartWorker)])
def test_an_order_comes_with_the_number_of_the_journal_entry_that_caused_it(order: wire.Sent) -> None:
    assert wire.decode_with_event(wire.encode(order, 7)) == (order, 7)
    assert wire.decode_with_event(wire.encode(order)) == (order, 0)
    with pytest.raises(ProtocolError):
        wire.decode_with_event(wire.encode(order, -1))
