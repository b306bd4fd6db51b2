"""The coordinator's log: all that it and its libraries say, in bounds."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from pilot.core.errors import UserError
from pilot.io import log_rotation
from pilot.io.printable import PrintableFormatter


def begin(path: Path) -> None:
    """Also what solvers and libraries say on stderr goes to the log: whoever read it may be gone by then."""
    try:
        _redirect(path)
    except OSError as error:
        raise UserError(f"cannot write the log {path}: {error.strerror}") from None
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def rotate(path: Path) -> None:
    """Begin it anew where it is full. Children that have it open write on to where it went."""
    with suppress(OSError):
        if log_rotation.is_full(path):
            path.replace(log_rotation.rotated(path))
            _redirect(path)


def _redirect(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    os.dup2(file, 2)
    os.close(file)
