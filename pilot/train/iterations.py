"""The turns of ``session.iterations``: each does one step, and is repeated with the same number if that is void."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pilot.core.errors import UserError
from pilot.train.data.training_loader import Batches, Draws


class Turns:
    """The turns over a session's ``batches``; ``in_step`` returns whether the current step has more for this rank."""

    def __init__(self, batches: Batches, in_step: Callable[[], bool]) -> None:
        self._of_session = batches
        self._by_one = batches.batching.micro is None
        self._in_step = in_step
        self._batches: Iterator[Any] | None = None
        self._stepped = False
        batches.draw_without_end()

    def begin(self) -> None:
        """Begin a turn, and its step if the script makes its samples itself."""
        self._stepped = False
        self._draw()

    def stepped(self) -> None:
        """Note that the script called ``session.step``, which has ended the step unless it has more batches."""
        if self._in_step():
            self._draw()
        else:
            self._stepped = True

    def _draw(self) -> None:
        if isinstance(self._of_session, Draws):
            self._take()

    def end(self) -> None:
        """End the turn; :class:`UserError` if its step is missing."""
        if not self._stepped:
            raise UserError(
                "a turn of session.iterations ended without its step: in every turn, take batches with `for batch in"
                " loader:` or loader.next(), and call session.step"
            )

    def batches(self) -> Iterator[Any]:
        """Yield the batches of this turn's step."""
        while True:
            yield self._take()
            if not self._in_step():
                return

    def next(self) -> Any:
        """Return the next batch of this turn's step."""
        if not self._by_one:
            raise UserError(
                "with micro_batch_size a step has as many batches as this rank's share takes: use `for batch in"
                " loader:` in place of loader.next()"
            )
        return self._take()

    def _take(self) -> Any:
        if self._stepped:
            raise UserError(
                "a turn of session.iterations has one step, and this turn's is done: take the next batch in the next"
                " turn (num_workers=1 loads it in advance)"
            )
        if self._batches is None:
            self._batches = self._of_session.rest()
        return next(self._batches)
