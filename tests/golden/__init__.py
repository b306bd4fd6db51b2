"""Golden files: texts that must not change unnoticed. PILOT_WRITE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent


def check(name: str, text: str) -> None:
    """Fail unless ``text`` is what the golden file ``name`` holds."""
    path = _FOLDER / name
    if os.environ.get("PILOT_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), f"{path} differs; if that is meant: PILOT_WRITE_GOLDEN=1 pytest ..."
