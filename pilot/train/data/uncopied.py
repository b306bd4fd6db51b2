"""What a script cannot copy: a session, its loader."""

from __future__ import annotations

from typing import NoReturn

from pilot.core.errors import UserError


class Uncopied:
    """Refuses to be copied or pickled. ``_known_as``: what users call it."""

    _known_as: str

    def __reduce__(self) -> NoReturn:
        raise UserError(
            f"{self._known_as} cannot be copied or pickled, nor can an object that has it (copy.deepcopy(trainer), a"
            " dataset that is sent to workers): copy model.state_dict() instead, and give others only what they need"
        )
