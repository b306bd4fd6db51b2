"""What a script changes in ``session.state`` at the beginning of a turn of its loop, such as a temperature.

A process that takes part from the middle of an epoch on, and one whose iteration is repeated, does the beginning again,
and may compute with what it gets there (``t = session.state["t"] = session.state["t"] * 0.9``). So it does that with
the values from before, and the later ones follow when it has caught up. Not with those that batches have changed since:
it may go on from them (``n = session.state["n"]``, and in each batch ``n += 1; session.state["n"] = n``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PLAIN = (bool, int, float, str)
"""Copying these costs nothing."""
Values = dict[str, Any]


@dataclass(slots=True)
class AtBeginning:
    """Plain values that the beginning of turn ``number`` has changed: as they were ``before``, and ``after`` it."""

    number: int = -1
    before: Values = field(default_factory=dict)
    after: Values = field(default_factory=dict)
    is_over: bool = True

    @classmethod
    def of(cls, number: int, state: Mapping[str, Any]) -> AtBeginning:
        """Turn ``number`` begins, with this ``session.state``."""
        return cls(number, _plain(state), {}, is_over=False)

    def ends(self, state: Mapping[str, Any]) -> None:
        """The script has reached the turn's first batch (or a later one)."""
        if not self.is_over:
            self.is_over = True
            self.after = _changed(self.before, state)
            self.before = {name: value for name, value in self.before.items() if name in self.after}

    def undo(self, state: Values) -> None:
        """The turn begins again."""
        for name in self.after:
            state.pop(name, None)
        state.update(self.before)

    def captured(self, state: Mapping[str, Any]) -> Values:
        """For the state that is sent and saved. If the beginning is not over, what it has changed so far counts."""
        after = self.after if self.is_over else _changed(self.before, state)
        return {"number": self.number, "before": dict(self.before), "after": dict(after)}

    @classmethod
    def restored(cls, captured: Mapping[str, Any] | None, state: Mapping[str, Any]) -> AtBeginning:
        """From :meth:`captured`, without what has changed in ``state`` since."""
        if captured is None:
            return cls()
        now = _plain(state)
        after = {name: value for name, value in captured["after"].items() if name in now and now[name] == value}
        before = {name: value for name, value in captured["before"].items() if name in after}
        return cls(captured["number"], before, after)


def _changed(before: Values, state: Mapping[str, Any]) -> Values:
    return {name: v for name, v in _plain(state).items() if name not in before or before[name] != v}


def _plain(state: Mapping[str, Any]) -> Values:
    return {name: value for name, value in state.items() if isinstance(value, _PLAIN)}
