"""Frames come out of a stream as they went in, however it is split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilot.core.errors import ProtocolError
from pilot.protocol.framing import HEAD_BYTES, Frames, framed


@given(frames=st.lists(st.binary(max_size=40)), cuts=st.lists(st.integers(0, 400)))
def test_frames_survive_any_cut(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, frames))
    inside = sorted(cut for cut in cuts if cut < len(stream))
    decoder = Frames(40)
    pieces = [stream[start:stop] for start, stop in pairwise([0, *inside, len(stream)])]
    assert [frame for piece in pieces for frame in decoder.feed(piece)] == frames


def test_a_frame_that_is_too_large_is_refused_by_its_head_after_those_before_it() -> None:
    decoder, came = Frames(5), []
    with pytest.raises(ProtocolError, match="a frame of 6 bytes is larger than 5"):
        came.extend(decoder.feed(framed(b"12345") + framed(b"123456")[:HEAD_BYTES]))
    assert came == [b"12345"]


def test_a_piece_is_taken_in_even_where_nobody_asks_for_its_frames() -> None:
    decoder = Frames(5)
    decoder.feed(framed(b"a"))
    assert list(decoder.feed(framed(b"b"))) == [b"a", b"b"]
