"""What one of our errors gives its receiver: one line, an exit status, and whether to retry."""

from __future__ import annotations

from pilot.core.errors import LONGEST, PilotError, SiteError, UserError, one_line


def test_exit_statuses_and_transience_of_errors() -> None:
    assert [kind("x").exit_status for kind in (PilotError, UserError, SiteError)] == [1, 2, 2]
    assert (PilotError("x").transient, PilotError("x", transient=True).transient) == (False, True)


def test_messages_are_escaped_joined_to_one_line_and_cut_in_the_middle() -> None:
    assert one_line("a\nb\tc\x1b[2J") == "a b\\tc\\x1b[2J"
    assert one_line("x" * LONGEST) == "x" * LONGEST
    cut = "a" * (LONGEST // 2) + " ... " + "b" * (LONGEST // 2)
    assert one_line("a" * LONGEST + "b" * LONGEST) == cut
    assert one_line("a" * 2 * LONGEST + "b" * 20 * LONGEST) == cut
    assert str(PilotError("a" * LONGEST + "b" * LONGEST)) == cut
