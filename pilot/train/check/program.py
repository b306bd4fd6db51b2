"""``python -m pilot.train.check.program``: one check. Reads a :class:`~pilot.train.check.settings.Job` from its
standard input, and prints JSON: a line for each part of the work, and one for the verdict.

Its processes are forked from one that has imported torch: for each run a *stage*, in a sandbox of its own, and from
that the run's ranks, each of which runs the script as ``python SCRIPT`` would. A stage is ordered with the names of
modules that are imported once for all that follow; it says :data:`READY`, or why this machine makes no sandbox. A rank
is ordered with its :class:`~pilot.train.check.settings.Run` and two descriptors: its connection to the course, and a
pipe that is open as long as it lives.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import torch

from pilot.host import proc, sandbox
from pilot.host.system import become_subreaper, drop_capabilities
from pilot.submission import loaded_code
from pilot.train.check import quiet, records
from pilot.train.check.runs import Subject, Unfit
from pilot.train.check.settings import LARGEST, LOG, READY, SEAT, Job, Run
from pilot.train.check.verdict import Check
from pilot.train.check.world import ProcessLink
from pilot.train.data.rng import seed_all
from pilot.train.ranks.script_end import script_ended
from pilot.train.script import as_main, imported, refusal

_SEED = 0
"""As on the nodes of a trainer, the generators are seeded identically before the script starts."""


def main() -> None:
    """Do it; or, in a forked process, run the script to its end."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        orders.close()
        _serve(job, theirs)
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


def _serve(job: Job, channel: socket.socket) -> None:
    """Fork a stage for each packet in ``channel``. Returns in the processes of the script, when that has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    torch.optim.SGD([torch.zeros(1)])  # torch imports half of itself with the first one
    _, (ours,) = _forked(channel, _preload)
    with socket.socket(fileno=ours) as orders:
        try:
            if job.covered:
                sandbox.enter(Path(job.folder))
            else:
                become_subreaper()
        except OSError as error:
            orders.send(str(error).encode())
            os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        orders.send(READY)
        packet, (link, life) = _forked(orders)
    _run(job, msgspec.structs.replace(msgspec.json.decode(packet, type=Run), link=link), life)


def _preload(order: bytes) -> None:
    for name in msgspec.json.decode(order, type=list[str]):
        with suppress(Exception):  # the script may import it otherwise
            importlib.import_module(name)


def _forked(channel: socket.socket, before: Callable[[bytes], object] = bytes) -> tuple[bytes, list[int]]:
    """Return each packet, with its descriptors, in a process of its own. This one ends with the channel, and what it
    has started.
    """
    channel.set_inheritable(False)
    while True:
        packet, descriptors, *_ = socket.recv_fds(channel, LARGEST, 2)
        if not packet:
            proc.kill(proc.tree(os.getpid())[1:])
            os._exit(0)
        before(packet)
        if os.fork() == 0:
            channel.close()
            return packet, descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def _run(job: Job, run: Run, life: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if job.covered:
        drop_capabilities()
    log = os.open(f"{run.place}{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.set_inheritable(run.link, False)
    os.set_inheritable(life, True)  # also as another program
    os.environ.update({SEAT: json.dumps(msgspec.to_builtins(run)), "TMPDIR": str(Path(run.place).parent)})
    link = ProcessLink(os.dup(run.link))  # the session's may be closed with it
    quiet.take_out()
    refusal.show_in_one_line()
    sys.argv = [job.script, *job.arguments]
    sys.path.insert(0, str(Path(job.script).resolve().parent))
    namespace = as_main.main_module(job.script)
    torch.set_num_threads(1)  # sums in another order would not be the same twice
    if run.double:
        torch.set_default_dtype(torch.float64)
    seed_all(_SEED)
    loaded_code.begin({})
    imported.begin()
    try:
        with io.open_code(str(Path(job.script).absolute())) as file:
            content = file.read()
        records.note_loaded(run)  # it may become another program
        exec(compile(content, job.script, "exec"), namespace)
        script_ended()
    except SystemExit as leaving:
        script_ended(leaving)
        if leaving.code not in (None, 0):
            raise
    except BaseException as error:
        as_main.fail(error)
    finally:
        records.note_loaded(run)
    link.ended()


if __name__ == "__main__":
    main()
