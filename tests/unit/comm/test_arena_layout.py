"""Where gradients are in the arena."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.comm.arena import ALIGN_BYTES, lay_out
from pilot.comm.channel import MAX_PACKET_BYTES
from pilot.comm.messages import Attach, encode

gradients = st.lists(st.tuples(st.integers(1, 5000), st.sampled_from(["float32", "float64"])), max_size=30)


@given(gradients, st.integers(64, 20_000))
def test_slots_do_not_overlap_and_lie_in_their_bucket(kinds: list[tuple[int, str]], bucket_bytes: int) -> None:
    layout = lay_out(kinds, bucket_bytes, control_count=4)
    end = 0
    for slot, (count, dtype) in zip(layout.slots, kinds, strict=True):
        part = layout.parts[slot.bucket]
        size = count * np.dtype(dtype).itemsize
        assert (slot.count, slot.dtype, part.dtype) == (count, dtype, dtype)
        assert slot.offset >= end
        assert slot.offset % ALIGN_BYTES == 0
        assert part.offset <= slot.offset
        assert slot.offset + size <= part.offset + part.count * np.dtype(dtype).itemsize
        end = slot.offset + size
    assert layout.control.offset >= end
    assert layout.control.offset + 8 * layout.control.count <= layout.size


def test_a_bucket_is_closed_when_it_is_full_or_the_dtype_changes() -> None:
    kinds = [(8, "float32"), (8, "float32"), (8, "float32"), (4, "float64"), (1000, "float64"), (1, "float64")]
    layout = lay_out(kinds, bucket_bytes=100, control_count=1)
    assert [slot.bucket for slot in layout.slots] == [0, 0, 1, 2, 2, 3]
    assert [part.dtype for part in layout.parts] == ["float32", "float32", "float64", "float64", "float64"]


@pytest.mark.parametrize("count", [1, 100_000, 1_048_577, 500_000_000])
def test_the_buckets_of_a_large_model_are_described_in_one_packet(count: int) -> None:
    layout = lay_out([(count, "float32")] * 8000, bucket_bytes=4 * 1024 * 1024, control_count=8008, wire="bfloat16")
    assert layout.slots[-1].offset >= 7999 * 4 * count
    assert len(encode(Attach(list(layout.parts), 63))) < MAX_PACKET_BYTES
