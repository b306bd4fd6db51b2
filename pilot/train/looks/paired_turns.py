"""Tells of a script that pairs the turns of the session's loop with numbers, or with the items of a list, of its own
(``for epoch, rate in zip(session.epochs(3), rates)``): these begin anew where a node joins or a run resumes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

from pilot.train.script import refusal

_PAIRS = {"enumerate": enumerate, "zip": zip}


def tell_if_paired(turns: Iterator[int] | None) -> None:
    """``turns``: what the script got from session.epochs or session.iterations, and asks for its first number."""
    names = {name for frame in refusal.frames() for name in frame.f_code.co_names}
    if turns is None or names.isdisjoint(_PAIRS):  # to ask who holds it takes long
        return
    holders = gc.get_referrers(turns)
    if tuples := [one for one in holders if type(one) is tuple]:  # in which zip has what it goes through
        holders += gc.get_referrers(*tuples)
    if any(type(one) in _PAIRS.values() for one in holders):
        refusal.note(
            "the script pairs the turns of the session's loop with numbers or items of its own (enumerate, zip), which"
            " begin with the first one on a node that joins and in a run that resumes, and count a turn that runs again"
            " twice: use the number that session.epochs, or session.iterations, gives (rates[epoch])"
        )
