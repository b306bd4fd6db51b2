"""The connection file: how an agent and the CLI find the coordinator, and prove that they may.

It holds the server's public key and the enrolment token, so it is 0600 and belongs to one user. Arguments and
environment carry its path, never its content.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from pilot.core.errors import UserError
from pilot.io.files import publish


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a peer needs to reach the coordinator.

    Parameters
    ----------
    endpoint : ZeroMQ endpoint on the advertised address, ``tcp://host:port``
    server_key : the coordinator's public CURVE key (Z85, 40 characters)
    token : the enrolment token, which a peer's first message repeats
    coordinator : names this pool, through restarts of its coordinator
    version : of the package that wrote the file
    """

    endpoint: str
    server_key: str
    token: str
    coordinator: str
    version: str


def write(path: Path, connection: Connection) -> None:
    """Publish the file, mode 0600."""
    publish(path, msgspec.json.format(msgspec.json.encode(connection)) + b"\n", mode=0o600)


def load(path: Path) -> Connection:
    """Read the file; :class:`UserError` where it is missing, another user's, open to others, or malformed."""
    try:
        with path.open("rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            return _decode(path, file.read())
    except FileNotFoundError:
        raise UserError(f"no connection file {path}; is the coordinator up? (pilot up)") from None
    except OSError as error:
        raise UserError(f"cannot read the connection file {path}: {error.strerror}") from None


def _check_private(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"connection file {path} is not a regular file")
    if status.st_uid != os.geteuid():
        raise UserError(f"connection file {path} belongs to user {status.st_uid}, not to you; use your own coordinator")
    if status.st_mode & 0o077:
        raise UserError(f"connection file {path} can be read by others, so its token is no secret; chmod 600 {path}")


def _decode(path: Path, data: bytes) -> Connection:
    try:
        return msgspec.json.decode(data, type=Connection)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"connection file {path} is damaged: {error}; run pilot up again") from None
