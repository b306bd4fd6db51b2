"""Golden files: texts that must not change unnoticed. PILOT_WRITE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).parent


def digests(cases: Iterable[tuple[str, object]]) -> str:
    """A line for each case: its name, and a digest of its result."""
    lines = [f"{name}: {hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()}\n" for name, found in cases]
    return "".join(lines)


def check(name: str, text: str) -> None:
    """Fail unless ``text`` equals the golden file ``name``."""
    path = _FOLDER / name
    if os.environ.get("PILOT_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; if that is meant: PILOT_WRITE_GOLDEN=1 pytest ..."
