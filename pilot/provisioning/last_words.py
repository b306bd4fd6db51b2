"""Why a pilot failed, by its own last words, and whether another one failed for the same cause."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from pilot.host.files import open_regular, tail
from pilot.host.printable import printable

TAIL_BYTES = 8192
LONGEST = 200
"""Characters of a line that are quoted."""

_REPORTERS = ("srun:", "slurmstepd:", "mpiexec:", "mpirun:", "jsrun:")
"""Programs that start pilots on nodes. When one fails they only say that, after the pilot's own words; when one does
not even start, the first of them says why."""


def last_line(path: Path) -> str:
    """The last line of words in a job's standard error that the pilot itself wrote; if there is none, the first one of
    what started it. "" if the file is empty or cannot be read."""
    try:
        with open_regular(path) as file:
            text = tail(file, TAIL_BYTES)
    except OSError:
        return ""
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    own = [line for line in lines if not line.startswith(_REPORTERS)]
    return printable((own[-1:] or lines[:1] or [""])[0])[:LONGEST]


def cause(reason: str, nodes: Collection[str]) -> str:
    """``reason`` without what differs between pilots that fail for the same cause: numbers, ids and names of nodes."""
    for node in sorted(nodes, key=len, reverse=True):
        reason = reason.replace(node, "#")
    return re.sub(r"\w*\d\w*", "#", reason)
