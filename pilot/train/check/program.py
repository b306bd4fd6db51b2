"""``python -m pilot.train.check.program``: one check. Reads a :class:`~pilot.train.check.settings.Job` from its
standard input, and prints JSON: a line for each part of the work, and one for the verdict.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import msgspec

from pilot.train.check import processes
from pilot.train.check.runs import Subject, Unfit
from pilot.train.check.settings import Job
from pilot.train.check.verdict import Check


def main() -> None:
    """Do it; or, in a forked process, run the script to its end."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        orders.close()
        processes.serve(job, theirs)
        return
    theirs.close()
    subject = Subject(job, orders)
    try:
        verdict = Check(subject, lambda text: _tell("progress", text)).verdict()
    except Unfit as unfit:
        _tell("unfit", str(unfit))
    else:
        told = {"passed": verdict.passed} | msgspec.to_builtins(verdict)
        _tell("verdict", told | {"files": dict(sorted(subject.files.items()))})


def _tell(kind: str, what: object) -> None:
    print(json.dumps({kind: what}), flush=True)


if __name__ == "__main__":
    main()
