"""Lines of journals with other content, and its checksum."""

from __future__ import annotations

import json

from pilot.io.entries import sealed


def changed(line: bytes, old: bytes, new: bytes) -> bytes:
    """The line with ``old`` replaced by ``new``, which must keep it JSON."""
    assert old in line
    data = json.loads(line.replace(old, new))
    del data["crc"]
    return sealed(data)
