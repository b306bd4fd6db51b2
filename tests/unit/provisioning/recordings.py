"""Recorded answers of scheduler commands, and a stand-in that replays them instead of running the commands, and
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pilot.core.errors import SubmitError

_FOLDER = Path(__file__).parent / "recorded"

PREFIX = "pilot-0123456789"


def text(name: str) -> str:
    """A recorded answer."""
    return (_FOLDER / name).read_text()


class Recorded:
    """Answers commands by name; an answer may be a function of the command. ``asked`` lists those that ran."""

    def __init__(self, answers: Mapping[str, str | SubmitError | Callable[[Sequence[str]], str]]) -> None:
        self.answers = dict(answers)
        self.asked: list[list[str]] = []

    def __call__(self, command: Sequence[str], limit_s: float) -> str:  # noqa: ARG002  # run_command's signature
        """As :func:`pilot.host.commands.run_command`."""
        self.asked.append(list(command))
        answer = self.answers[command[0]]
        if isinstance(answer, SubmitError):
            raise answer
        return answer if isinstance(answer, str) else answer(command)

    def times(self, name: str) -> int:
        """How often the command ran."""
        return sum(command[0] == name for command in self.asked)
