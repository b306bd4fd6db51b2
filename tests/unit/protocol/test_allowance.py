"""An allowance lets so much through at once, and so much a second."""

from __future__ import annotations

from pilot.protocol.allowance import Allowance


def test_what_is_left_grows_up_to_the_burst() -> None:
    some = Allowance(2.0, 3.0, 10.0)
    assert [some.allows(10.0) for _ in range(4)] == [True, True, True, False]
    assert not some.allows(10.4)
    assert some.allows(10.5)
    assert some.allows(1000.0, 3.0)
    assert not some.allows(1000.0)


def test_what_was_taken_beyond_it_has_to_be_waited_for() -> None:
    some = Allowance(2.0, 3.0, 0.0)
    assert some.owes_s(0.0, 3.0) == 0.0
    assert some.owes_s(0.0, 4.0) == 2.0
    assert some.owes_s(1.0, 0.0) == 1.0
    assert some.owes_s(2.0, 0.0) == 0.0
