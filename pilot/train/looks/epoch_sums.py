"""Tells of what a script decides at an epoch's end by a sum over its own batches, or by the last one's loss: a learning
rate by the mean of the training loss (``plateau.step(total / count)``), or when to stop; and of what it computes there
from a sum, a list or a table of its batches, and keeps for later epochs' losses: in ``session.state``, a buffer, or a
tracked object. Each rank has its own batches, whoever joins or resumes in the middle of the epoch has only those since,
and one that runs again counts twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dis import Instruction
from types import CodeType, FrameType

from pilot.train.looks.kept_at_end import KeptAtEnd
from pilot.train.looks.turn import left_by
from pilot.train.script import loop_code, refusal
from pilot.train.script.branches import leaves, left_with, under_tests
from pilot.train.script.bytecode import between
from pilot.train.script.refusal import DOT
from pilot.train.script.statements import (
    ADDS,
    Range,
    added_to,
    augmented,
    is_in_place,
    items_in,
    loop_at,
    statements_in,
)
from pilot.train.script.steering import steers, updates
from pilot.train.script.step_uses import StepUses, end_of
from pilot.train.state.training import Training

_TABLES = (list, dict, set, deque)
_STOPS = {"stop"}
_LOADS = "load_state_dict"
_RESET = "reset"


class EpochSums:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._told = False
        self._kept = KeptAtEnd(training)

    def look(self, frames: Sequence[FrameType], head: int, uses_of: Callable[[], StepUses]) -> None:
        """Tell once. ``frames``: the running functions, from the one on with the session's loop over epochs, which
        begins at ``head``; ``uses_of``: returns what the steps compute with.
        """
        loop = None if self._told else loop_code.inner_loop(frames, head)
        if loop is None or len(frames) > 1:  # of a loop that calls functions, the whole is read
            return
        frame, begin = loop
        code = frame.f_code
        if not loop_at(code, begin) or not loop_at(code, head):  # it runs elsewhere
            return
        first, last, uses = end_of(code, begin), end_of(code, head), uses_of()
        for names in (set(_sums(frame, head, begin)), left_by(frame, begin)):
            for part in _behind(frame, first, last, names):
                if not self._told:
                    self._tell_of(frame, *part, uses)

    def _tell_of(self, frame: FrameType, begin: int, end: int, names: set[str], uses: StepUses) -> None:
        if _decides(frame, begin, end, names):
            self._tell(sorted(names))
        elif kept := self._kept.by(frame, begin, end, names, uses):
            self._tell_of_kept(sorted(names), kept)

    def _tell(self, names: Sequence[str]) -> None:
        self._told = True
        refusal.note(
            f"what the script does at an epoch's end depends on its own batches ({', '.join(names)}): each rank has"
            " others, a node that joins, or a run that resumes, has only those since, and a batch that runs again"
            " counts twice: use what session.evaluate returns"
        )

    def _tell_of_kept(self, names: Sequence[str], kept: str) -> None:
        self._told = True
        refusal.note(
            f"what the script keeps in {kept} at an epoch's end, for its steps, comes from its own batches"
            f" ({', '.join(names)}): each rank has others, a node that joins, or a run that resumes, has only those"
            " since, and a batch that runs again counts twice: compute it at the epoch's end, on all ranks, by"
            " session.evaluate (means) or from the whole dataset (what belongs to single samples)"
        )


def _sums(frame: FrameType, start: int, begin: int) -> Iterator[str]:
    """Variables, and attributes of objects in them, that are set between ``start`` and the loop that begins at
    ``begin``, as they are or with the object, and to which that adds.
    """
    code = frame.f_code
    loop = loop_at(code, begin)
    summed = (*loop_code.NUMBERS, *_TABLES)
    found = {name for name, value in loop_code.handed_on(frame, begin) if isinstance(value, summed)}
    paths = [path.split(".") for one in loop_code.statements_of(code, begin) for path in one.reads]
    found |= {".".join(path[:-1]) for path in paths if path[1:] and path[-1] in ADDS}
    found |= {*augmented(loop)}
    filled = {path[0] for path in paths if len(path) == 2 and is_in_place(path[1])}
    items = (one for one in items_in(code) if loop[0].offset <= one.where <= loop[-1].offset)
    filled |= {one.holder for one in items if one.is_changed and not one.key}
    read = loop_code.read_first(code, begin)
    found |= {name for name in filled if name.partition(".")[0] in read}
    reset = {path for one in loop_code.statements_between(code, start, begin) for path in one.reads}
    for name in found:
        its = {name, name.replace(DOT, ".").rpartition(".")[0]}
        if (
            any(loop_code.read_to_set(code, start, begin, one) is not None for one in its)
            or f"{name}.{_RESET}" in reset
        ):
            yield name


def _behind(frame: FrameType, begin: int, end: int, names: set[str]) -> Iterator[tuple[int, int, set[str]]]:
    """Those of these names that still have what they had, and what statements between two instructions compute from
    them: between two instructions each. Not what does not run with these batches (``if phase == "val":``).
    """
    texts = {name: value for name, value in frame.f_locals.items() if type(value) is str}
    runs = left_with(frame.f_code, begin, end, texts)
    for first, last, found in _carried(frame, begin, end, names, runs):
        yield from ((max(a, first), min(b, last), found) for a, b in runs if a < last and b > first)


def _carried(
    frame: FrameType, begin: int, end: int, names: set[str], runs: Sequence[Range]
) -> Iterator[tuple[int, int, set[str]]]:
    code, found = frame.f_code, set(names)
    statements = loop_code.statements_between(code, begin, end)
    for one in (each for each in statements if any(first <= each.begin < last for first, last in runs)):
        own = {name for name in one.sets if "." not in name}
        if one.reads & found:
            found |= own | added_to(one)
        elif own & found and _runs_with(code, begin, one.begin):
            yield begin, one.begin, set(found)
            begin, found = one.begin, found - own
    if found:
        yield begin, end, found


def _runs_with(code: CodeType, begin: int, at: int) -> bool:
    """Whether the instruction ``at`` runs, once, if the one at ``begin`` does, unless all of that is left."""
    jumps = (one for one in between(code, begin, at) if "JUMP" in one.opname or one.opname == "FOR_ITER")
    return not any(one.argval > at for one in jumps)


def _decides(frame: FrameType, begin: int, end: int, names: set[str]) -> bool:
    statements = loop_code.statements_between(frame.f_code, begin, end)
    if any(one.reads & names and any(updates(path.split("."), frame) for path in one.reads) for one in statements):
        return True
    parts = under_tests(frame.f_code, lambda path: path in names)
    return any(_acts(part, frame, end) for part in parts if part and begin <= part[0].offset < end)


def _acts(part: Sequence[Instruction], frame: FrameType, end: int) -> bool:
    """Whether it leaves the loop, stops the session, or changes what is trained."""
    of_loop = end < len(frame.f_code.co_code)
    if of_loop and leaves(part, end):
        return True
    return any(
        loop_code.uses_session(frame, one, _STOPS) or steers(one, frame) or _LOADS in one.attributes
        for one in statements_in(part)
    )
