"""What one of our errors gives its receiver: one line, an exit status, and whether to retry."""

from __future__ import annotations

from pilot.core.errors import LONGEST, PilotError, SiteError, UserError, one_line


def test_who_typed_it_gets_status_2_and_nothing_is_tried_again_unless_it_says_so() -> None:
    assert [kind("x").exit_status for kind in (PilotError, UserError, SiteError)] == [1, 2, 2]
    assert (PilotError("x").transient, PilotError("x", transient=True).transient) == (False, True)


def test_a_line_is_one_shows_what_cannot_be_printed_and_is_cut_in_its_middle() -> None:
    assert one_line("a\nb\tc\x1b[2J") == "a b\\tc\\x1b[2J"
    assert one_line("x" * LONGEST) == "x" * LONGEST
    cut = "a" * (LONGEST // 2) + " ... " + "b" * (LONGEST // 2)
    assert one_line("a" * LONGEST + "b" * LONGEST) == cut
    assert one_line("a" * 2 * LONGEST + "b" * 20 * LONGEST) == cut
    assert str(PilotError("a" * LONGEST + "b" * LONGEST)) == cut
