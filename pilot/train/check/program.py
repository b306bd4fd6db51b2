"""``python -m pilot.train.check.program``: one check. It reads :class:`~pilot.train.check.settings.CheckSettings` from
its standard input and prints lines of JSON: one for each part of the work, and the result.

Its processes are forked from one that has imported torch. Each run has a *stage*, a process in its own sandbox, from
which its ranks are forked; a rank runs the script as ``python SCRIPT`` would. The order for a stage names modules to
import for all later runs; the stage answers :data:`READY`, or why this machine cannot make a sandbox. The order for a
rank is a :class:`~pilot.train.check.settings.CheckedRun` with two descriptors: the connection to its world, and a pipe
that stays open while the rank lives.
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
from pilot.train.check.runs import NoSandbox, Subject
from pilot.train.check.settings import LARGEST, LOG, READY, VARIABLE, CheckedRun, CheckSettings
from pilot.train.check.verdict import Check
from pilot.train.check.world import ProcessLink
from pilot.train.data.rng import seed_all
from pilot.train.ranks.script_end import script_ended
from pilot.train.script import as_main, imported, refusal

_SEED = 0
"""The seed of the generators before the script starts: the same for all ranks, as on the nodes of a trainer."""


def main() -> None:
    """Run the check; in a forked process return when the script has ended."""
    settings = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckSettings)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        orders.close()
        _serve(settings, theirs)
        return
    theirs.close()
    subject = Subject(settings, orders)
    try:
        result = Check(subject, lambda text: _print("progress", text)).result()
    except NoSandbox as error:
        _print("unfit", str(error))
    else:
        fields = {"passed": result.passed} | msgspec.to_builtins(result)
        _print("verdict", fields | {"files": dict(sorted(subject.files.items()))})


def _print(kind: str, content: object) -> None:
    print(json.dumps({kind: content}), flush=True)


def _serve(settings: CheckSettings, channel: socket.socket) -> None:
    """Fork a stage for each packet in ``channel``; return in a rank's process when its script has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    torch.optim.SGD([torch.zeros(1)])  # torch imports half of itself with the first one
    _, (ours,) = _forked(channel, _preload)
    with socket.socket(fileno=ours) as orders:
        try:
            if settings.covered:
                sandbox.enter(Path(settings.folder))
            else:
                become_subreaper()
        except OSError as error:
            orders.send(str(error).encode())
            os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        orders.send(READY)
        packet, (link, life) = _forked(orders)
    _run(settings, msgspec.structs.replace(msgspec.json.decode(packet, type=CheckedRun), link=link), life)


def _preload(order: bytes) -> None:
    for name in msgspec.json.decode(order, type=list[str]):
        with suppress(Exception):  # the script may import it in another way
            importlib.import_module(name)


def _forked(channel: socket.socket, before: Callable[[bytes], object] = bytes) -> tuple[bytes, list[int]]:
    """Return each packet in ``channel``, with its descriptors, in a forked process; end all when it closes."""
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


def _run(settings: CheckSettings, run: CheckedRun, life: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if settings.covered:
        drop_capabilities()
    log = os.open(f"{run.place}{LOG}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.set_inheritable(run.link, False)
    os.set_inheritable(life, True)  # also if it executes another program
    os.environ.update({VARIABLE: json.dumps(msgspec.to_builtins(run)), "TMPDIR": str(Path(run.place).parent)})
    link = ProcessLink(os.dup(run.link))  # the script may close the session's
    quiet.disable_randomness()
    refusal.show_in_one_line()
    sys.argv = [settings.script, *settings.arguments]
    sys.path.insert(0, str(Path(settings.script).resolve().parent))
    namespace = as_main.main_module(settings.script)
    torch.set_num_threads(1)  # sums in another order would not be the same twice
    if run.double:
        torch.set_default_dtype(torch.float64)
    seed_all(_SEED)
    loaded_code.begin({})
    imported.begin()
    try:
        with io.open_code(str(Path(settings.script).absolute())) as file:
            content = file.read()
        records.note_loaded(run)  # it may execute another program
        exec(compile(content, settings.script, "exec"), namespace)
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
