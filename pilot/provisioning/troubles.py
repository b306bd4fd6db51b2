"""Problems with the scheduler: reported when they begin, change and end, not each time they occur."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from pilot.core.errors import SubmitError

Call = Literal["poll", "submit", "cancel"]


@dataclass(frozen=True, slots=True)
class Troubled:
    """The scheduler does not answer or accepts no jobs, as described in ``text``; empty when that is over."""

    text: str


class Troubles:
    """The trouble with each kind of call, empty if there is none; ``report`` is called with changes."""

    def __init__(self, report: Callable[[Troubled], None]) -> None:
        self._report = report
        self._texts: dict[Call, str] = {"poll": "", "submit": "", "cancel": ""}

    @property
    def text(self) -> str:
        """All trouble, in one line."""
        return "; ".join(text for text in self._texts.values() if text)

    def say(self, call: Call, text: str) -> None:
        """The trouble with ``call`` is ``text`` now."""
        if self._texts[call] != text:
            self._texts[call] = text
            self._report(Troubled(self.text))

    @contextmanager
    def of(self, call: Call) -> Iterator[None]:
        """An error raised within is the trouble with ``call``; success clears it."""
        try:
            yield
        except SubmitError as error:
            self.say(call, str(error))
        else:
            self.say(call, "")
