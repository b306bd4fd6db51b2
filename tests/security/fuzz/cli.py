"""Runs commands in this process and captures their output."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from pilot.host.printable import PrintableStream
from tests.security.fuzz.target import Wrong, check_line


def said_once(call: Callable[[], int], statuses: Collection[int]) -> int:
    """The exit status of ``call``; :class:`Wrong` if it is an unexpected one, or an error is not one clear line."""
    # As main() sets them.
    out, err = (PrintableStream(io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)) for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = call()
        except SystemExit as end:
            status = int(end.code or 0)
    said = err.buffer.getvalue().decode()
    if status not in statuses or "internal error" in said or "Traceback" in said:
        raise Wrong(f"status {status}: {said[-500:]!r}{_log(said)}")
    if status == 2:
        check_line(said.removesuffix("\n"))
    return status


def _log(said: str) -> str:
    """The last line of the traceback left by a bug."""
    if "traceback in " not in said:
        return ""
    lines = Path(said.rpartition("traceback in ")[2].strip()).read_text().splitlines()
    where = [line.strip() for line in lines if "/pilot/" in line][-1:]
    return f" {lines[-1][:200]} {' '.join(where)}"
