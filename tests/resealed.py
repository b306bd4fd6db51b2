"""Lines of journals with any content, and its checksum."""

from __future__ import annotations

import json
import zlib
from typing import Any


def line_of(data: dict[str, Any]) -> bytes:
    """The line with ``data``, also with texts that a journal cannot have."""
    rest = json.dumps(data).encode()[1:]
    return b'{"crc":"%08x",' % zlib.crc32(rest) + rest + b"\n"


def changed(line: bytes, old: bytes, new: bytes) -> bytes:
    """The line with ``old`` replaced by ``new``, which must keep it JSON."""
    assert old in line
    data = json.loads(line.replace(old, new))
    del data["crc"]
    return line_of(data)
