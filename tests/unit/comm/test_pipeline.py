"""The pipeline of a rank process."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from pilot.comm.pipeline import IN_FLIGHT, PIECE_BYTES, Pipeline, pieces


class Transfer:
    """Completes when told to."""

    def __init__(self) -> None:
        self.over = False

    def done(self) -> bool:
        return self.over


class Wire:
    """Records what was started, in order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.transfers: list[Transfer] = []

    def begin(self, name: str) -> Transfer:
        self.begun.append(name)
        self.transfers.append(Transfer())
        return self.transfers[-1]


def test_pieces_begin_in_order_and_a_few_at_once() -> None:
    wire, pipeline = Wire(), Pipeline()
    pipeline.put(partial(wire.begin, f"a{n}") for n in range(IN_FLIGHT - 1))
    pipeline.put(partial(wire.begin, f"b{n}") for n in range(3))
    names = [*(f"a{n}" for n in range(IN_FLIGHT - 1)), "b0", "b1", "b2"]
    assert wire.begun == names[:IN_FLIGHT]
    wire.transfers[1].over = True  # out of turn: the first one still keeps its place
    assert not pipeline.done()
    assert wire.begun == names[:IN_FLIGHT]
    wire.transfers[0].over = True
    assert not pipeline.done()
    assert wire.begun == names


def test_a_transfer_is_over_when_its_last_piece_is() -> None:
    wire, pipeline = Wire(), Pipeline()
    pipeline.put(partial(wire.begin, name) for name in ("a0", "a1"))
    pipeline.put([partial(wire.begin, "b")])
    counts = []
    for transfer in wire.transfers:
        transfer.over = True
        pipeline.done()
        counts.append(pipeline.over)
    assert counts == [0, 1, 2]
    assert pipeline.done()


def test_nothing_put_is_done() -> None:
    assert Pipeline().done()


@pytest.mark.parametrize("count", [0, 1, PIECE_BYTES // 4, PIECE_BYTES, 10 * PIECE_BYTES + 3])
def test_pieces_are_the_array_in_parts_of_about_the_same_size(count: int) -> None:
    numbers = np.arange(count, dtype=np.float32)
    parts = pieces(numbers)
    assert parts
    np.testing.assert_array_equal(np.concatenate(parts), numbers)
    assert all(np.shares_memory(part, numbers) for part in parts if count)
    assert max(part.nbytes for part in parts) <= 1.5 * PIECE_BYTES
