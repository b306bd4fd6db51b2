"""Tells of what a script keeps of its own batches in ``session.state``, in tracked objects, in modules or in objects of
installed packages: running means of inputs or of features, prototypes, a history of losses that weighs samples, an
index of neighbours. Each rank has another part of each batch. (Of what a forward pass keeps:
:mod:`pilot.train.looks.changed_in_forward`.)

Read from the script's code, and so on a single node, too, where no other rank has anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from pilot.train.looks.marks import CHANGEABLE
from pilot.train.looks.tracked_parts import is_saved
from pilot.train.looks.turn import Turn
from pilot.train.script import loop_code, refusal
from pilot.train.script.bytecode import running_at
from pilot.train.script.loop_code import value_of
from pilot.train.script.objects import is_of_a_package
from pilot.train.script.refusal import DOT
from pilot.train.script.step_uses import StepUses
from pilot.train.state.module_numbers import shown
from pilot.train.state.training import Training


class OwnStatistics:
    """Looks for one session. ``training``: what it knows."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._told = False

    def look(self, frames: Sequence[FrameType], uses_of: Callable[[], StepUses]) -> None:
        """Tell once. ``frames``: the running function, or all of them as one; of others nothing is told; ``uses_of``:
        returns what the steps compute with. (A log does no harm.)
        """
        if self._told or len(frames) != 1:
            return
        frame = frames[0]
        heads = loop_code.heads(frame.f_code, running_at(frame))
        turn = Turn(frame, heads[-1] if heads else None, (), ())
        if names := sorted({name for used, name in self._kept(frame, turn) if _is_used(used, uses_of())}):
            self._told = True
            refusal.note(
                f"the script keeps what comes from its own batches ({', '.join(names)}): each rank has another part"
                " of each batch, so that ranks would differ, and nodes that join and runs that resume get one"
                " rank's: derive what training depends on from what is the same on all ranks (parameters,"
                " session.steps, what session.evaluate returns)"
            )

    def _kept(self, frame: FrameType, turn: Turn) -> Iterator[tuple[str, str]]:
        """Items of ``session.state``, attributes of tracked objects and of modules, and objects of installed packages:
        as the code has them, and as they are told.
        """
        user, tracked = self._training.user, {id(one): (key, one) for key, one in self._training.tracked.items()}
        modules = {id(one): path for path, one in self._training.numbers.modules()}
        keys = {f"[{key!r}]": key for key in user}
        held = {id(user[key]): item for item, key in keys.items() if isinstance(user[key], CHANGEABLE)}
        for name in turn.filled_from_batch():
            holder, item = name[: name.find("[")], name[name.find("[") :]
            path = name.replace(DOT, ".").split(".")
            owner = id(_value_of(frame, path[:-1])) if path[1:] else 0
            if turn.is_state(holder) or value_of(frame, *holder.split(".")) is user:
                if item in keys and type(user[keys[item]]) is not int:  # a count, see SampleCounts
                    yield keys[item], f"session.state{item}"
            elif owner in tracked and is_saved(tracked[owner][1], path[-1]):
                yield name, f"{tracked[owner][0]}.{path[-1]}"
            elif owner in modules:
                yield name, shown(modules[owner], path[-1])
            elif is_of_a_package(type(value_of(frame, *path))) and not turn.makes(path[0]):
                yield name, name
            elif (number := id(_value_of(frame, path))) in held:
                yield keys[held[number]], f"session.state{held[number]}"


def _is_used(name: str, uses: StepUses) -> bool:
    return name in uses.keys or any(path == name or path.startswith(f"{name}.") for _, path in uses.paths())


def _value_of(frame: FrameType, path: Sequence[str]) -> object:
    """Of an attribute, which may have become a variable."""
    return frame.f_locals.get(DOT.join(path), value_of(frame, *path))
