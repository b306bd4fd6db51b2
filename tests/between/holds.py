"""Where workers hold until they are released, so that a play can strike in the phase that it has chosen."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_NAP_S = 0.002
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Hold:
    """An order to the worker ``name`` to hold in ``phase`` when it has been there ``skip`` times."""

    folder: Path
    number: int
    name: str
    phase: str
    skip: int

    def arm(self) -> None:
        """Give the order."""
        part = self.folder / f"part-{self.number}"
        part.write_text(f"{self.number} {self.skip}")
        part.rename(_armed(self.folder, self.name, self.phase))

    def is_reached(self) -> bool:
        """Return whether the worker holds, or has held."""
        return _reached(self.folder, self.number).exists()

    def release(self) -> None:
        """Let the worker go on; if it has not come there yet, it will not hold."""
        _armed(self.folder, self.name, self.phase).unlink(missing_ok=True)


class Holder:
    """The worker ``name``, which holds where it is told to."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._passed: dict[int, int] = {}

    def at(self, phase: str) -> None:
        """Hold in ``phase`` if that is ordered."""
        armed = _armed(self._folder, self._name, phase)
        try:
            number, skip = map(int, armed.read_text().split())
        except FileNotFoundError:
            return
        passed = self._passed[number] = self._passed.get(number, 0) + 1
        if passed <= skip:
            return
        _reached(self._folder, number).touch()
        end_s = time.monotonic() + _DEADLINE_S
        while armed.exists():
            assert time.monotonic() < end_s, f"nobody has released {self._name} in {phase}"
            time.sleep(_NAP_S)


def _armed(folder: Path, name: str, phase: str) -> Path:
    return folder / f"armed-{name}-{phase.replace(' ', '-')}"


def _reached(folder: Path, number: int) -> Path:
    return folder / f"reached-{number}"
