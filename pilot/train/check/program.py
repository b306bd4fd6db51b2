"""``python -m pilot.train.check.program``: imports torch once, then forks the processes of one course, each of
which runs the script as ``python SCRIPT`` would. Ends when the socket that is its standard input is closed.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import torch

from pilot.io import loaded_code
from pilot.train.check import quiet, records, settings
from pilot.train.check.link import say_ended
from pilot.train.data.rng import seed_all
from pilot.train.ranks.script_end import script_ended
from pilot.train.script import as_main, refusal

SEED = 0
"""As on the nodes of a trainer, the generators are seeded identically before the script starts."""
LARGEST = 1 << 20


def main() -> None:
    """In a forked process: run the script to its end."""
    channel = socket.socket(fileno=os.dup(0))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    job = _serve(channel)
    if job is not None:
        _run(job["script"], job["arguments"], json.loads(job["environment"][settings.SEAT]))


def _serve(channel: socket.socket) -> dict[str, Any] | None:
    channel.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        packet, descriptors, *_ = socket.recv_fds(channel, LARGEST, 2)
        if not packet:
            return None
        if os.fork() == 0:
            channel.close()
            return _become(json.loads(packet), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _become(job: dict[str, Any], link: int, life: int) -> dict[str, Any]:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    os.set_inheritable(link, False)
    os.set_inheritable(life, True)  # open as long as the process lives, also as another program
    run = json.loads(job["environment"][settings.SEAT]) | {"link": link}
    job["environment"][settings.SEAT] = json.dumps(run)
    os.environ.update(job["environment"])
    return job


def _run(script: str, arguments: list[str], run: dict[str, Any]) -> None:
    quiet.take_out()
    refusal.show_in_one_line()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    namespace = as_main.main_module(script)
    torch.set_num_threads(1)  # sums in another order would not be the same twice
    if run["double"]:
        torch.set_default_dtype(torch.float64)
    link = os.dup(run["link"])  # the session's own may be closed with it
    seed_all(SEED)
    loaded_code.begin({})
    try:
        with io.open_code(str(Path(script).absolute())) as file:
            content = file.read()
        records.note_files(run["records"])  # it may become another program
        exec(compile(content, script, "exec"), namespace)
        script_ended()
    except SystemExit as leaving:
        script_ended(leaving)
        if leaving.code not in (None, 0):
            raise
    except BaseException as error:
        as_main.fail(error)
    finally:
        records.note_files(run["records"])
    say_ended(link)


if __name__ == "__main__":
    main()
