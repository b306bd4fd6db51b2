"""The fork server: imports torch once, then forks the warm training processes that the agent asks for.

It is exec'ed by the agent, one per interpreter: ``python -m pilot.agent.fork_server DESCRIPTOR`` with one end of a
SEQPACKET socket pair. A process that has run a multi-threaded torch operation must not be forked (the child's first
operation hangs), so this one only imports: one thread, no asyncio, no CUDA call.

Packets to it: ``"job"`` with four descriptors (a file with a :class:`~pilot.submission.submission.ForkJob` as JSON, the
worker's control socket, its log, the log's folder); or ``["preload", file, unfit]``: import what scripts imported
before (:mod:`pilot.agent.preload`), between jobs.

Packets from it, as JSON: ``["ready", seconds, threads]`` or ``["failed", why]`` once; for each job ``["forked", number,
pid]`` and ``["exited", number, status]`` (as of ``os.waitstatus_to_exitcode``), or ``["declined", number, why]``: it
must be given to a server that has preloaded nothing, or ``["unforked", number, why]``: the node refused it;
``["importing", module]`` before each import, ``["preloaded", packages]`` after the last one, and ``["unfit", module,
why]`` if it must not fork any more because of a module; then it ends.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import io
import json
import multiprocessing.process
import os
import signal
import socket
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pilot.agent.patience import patiently
from pilot.core.errors import UserError
from pilot.host.files import SICK
from pilot.host.system import die_with_parent, readable, reap_among
from pilot.rundir import log_marks
from pilot.rundir.log_marks import Marker, mark_log

if TYPE_CHECKING:
    from pilot.agent.preload import Preloader
    from pilot.submission.submission import ForkJob

MAX_PACKET_BYTES = 128 * 1024
JOB = b'"job"'
BASE = ("numpy", "torch", "torch.utils.data", "pilot.train")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
"""glibc returns freed memory at the end of the heap to the kernel, which then zeroes it again for the next step, page
by page: 14,000 pages for 25 M parameters, a sixth of a step's CPU time. With these settings training processes keep it,
and so do rank processes, in which MPI allocates memory for each sum. (32 MiB is the maximum for the second; see
mallopt(3).) Settings in the job's environment take precedence.
"""
HASHES = {"PYTHONHASHSEED": "0"}
"""Makes sets of strings iterate in the same order on all nodes and after a restart: scripts number words by
``list(set(words))``. As for the allocator, a setting in the job's environment takes precedence.
"""

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""A batch system may send its notice to all processes of a job. Only the agent acts on it; workers train on until the
agent stops them."""


def main(descriptor: int) -> None:
    """Serve until the agent has ended. In a forked worker, ``serve`` returns its job, which is run to the process's
    end."""
    die_with_parent(os.getppid())
    for notice in _IGNORED:
        signal.signal(notice, _ignore)
    channel = socket.socket(fileno=descriptor)
    channel.set_inheritable(False)
    import_base(channel)
    job = serve(channel)
    if job is not None:
        run(job)


def import_base(channel: socket.socket) -> None:
    """Import what every worker needs, and report the result."""
    started_s = time.monotonic()
    try:
        for name in BASE:
            importlib.import_module(name)
    except Exception as error:
        _send(channel, "failed", f"{type(error).__name__}: {error}")
        sys.exit(1)
    gc.collect()
    gc.freeze()
    _send(channel, "ready", time.monotonic() - started_s, len(list(Path("/proc/self/task").iterdir())))


def serve(channel: socket.socket) -> ForkJob | None:
    """Fork on request and report exits. Returns None when the agent has ended, and the job in a forked worker."""
    import msgspec

    from pilot.agent.preload import Preloader
    from pilot.submission import installed
    from pilot.submission.submission import ForkJob

    forked: dict[int, int] = {}

    def report_exits(*_: object) -> None:
        for pid, status in reap_among(forked):
            _send(channel, "exited", forked.pop(pid), os.waitstatus_to_exitcode(status))

    preloader = Preloader()
    while True:
        # A handler runs during an import, too, which may take minutes; and an import may have replaced it.
        signal.signal(signal.SIGCHLD, report_exits)
        report_exits()
        if not readable([channel], 0.0 if preloader.has_more else None):
            _preload_one(channel, preloader)
        else:
            packet, received, _, _ = socket.recv_fds(channel, MAX_PACKET_BYTES, 4)
            if not packet:
                return None
            if packet != JOB:
                _, file, unfit = json.loads(packet)
                installed.add_imports(Path(file), unfit=unfit)
                preloader.take(Path(file))
                continue
            with os.fdopen(received[0], "rb") as ordered:
                ordered.seek(0)
                job = msgspec.json.decode(ordered.read(), type=ForkJob)
            descriptors = received[1:]
            outcome, found = _fork(job, preloader)
            if found == 0:
                channel.close()
                become_worker(job, descriptors)
                return job
            for descriptor in descriptors:
                os.close(descriptor)
            _send(channel, outcome, job.number, found)
            if isinstance(found, int):
                forked[found] = job.number


def _fork(job: ForkJob, preloader: Preloader) -> tuple[str, int | str]:
    """Return the report: the process (0: in that process itself), or why there is none."""
    if why := preloader.declines(job):
        return "declined", why
    try:
        return "forked", patiently(os.fork)
    except UserError as error:
        return "unforked", str(error)


def _preload_one(channel: socket.socket, preloader: Preloader) -> None:
    """Import one more module. If that makes the process unfit to fork, it exits; the workers that it forked
    continue."""
    name = preloader.next_name()
    if name:
        _send(channel, "importing", name)
        why = preloader.load(name)
        if why:
            _send(channel, "unfit", name, why)
            os._exit(0)
    if not preloader.has_more:
        _send(channel, "importing", "")
        _send(channel, "preloaded", sorted(preloader.loaded))
        gc.collect()
        gc.freeze()


def become_worker(job: ForkJob, descriptors: Sequence[int]) -> None:
    """Set up the forked process: its own session, log, environment, and signal handling."""
    control, log, logs = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.register_at_fork(after_in_child=_default_signals)
    os.setsid()
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    take_over(logs)
    faulthandler.enable()
    for descriptor in (control, logs):
        os.set_inheritable(descriptor, False)
    threads = dict.fromkeys(THREAD_VARIABLES, str(job.threads))
    os.environ.update(threads | job.launch.environment | job.variables, PILOT_CONTROL_FD=str(control))


def run(job: ForkJob) -> None:
    """Run the script as ``python script`` would: same ``sys.argv``, ``sys.path[0]``, ``__main__`` and exit status."""
    launch = job.launch
    os.chdir(launch.cwd)
    os.umask(launch.umask)
    script = str(Path(launch.cwd, launch.script))
    sys.argv = [launch.script, *launch.arguments]
    # As in a new interpreter; ours was started before the trainer's PYTHONPATH was known.
    added = filter(None, launch.environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [str(Path(script).resolve().parent), *(str(Path(launch.cwd, path)) for path in added)]
    multiprocessing.process.ORIGINAL_DIR = launch.cwd  # type: ignore[attr-defined]  # not in typeshed; where spawned DataLoader workers go
    from pilot.agent import submitted_code
    from pilot.submission import loaded_code
    from pilot.train import ddp
    from pilot.train.node.devices import take_own
    from pilot.train.node.membership import Seat
    from pilot.train.ranks.script_end import script_ended, script_failed
    from pilot.train.script import as_main, imported, last_message
    from pilot.train.script.refusal import show_in_one_line

    namespace = as_main.main_module(script)
    show_in_one_line()
    if ddp.ADDRESS in os.environ:
        ddp.Restarts(os.environ).run()  # returns in the processes that it forks to run the script
    _same_randomness_and_own_threads(job)  # not before a fork: torch starts a thread, which its exit would wait for
    imported.begin()
    try:
        take_own(Seat.on_node(os.environ))
        copied = submitted_code.install(launch.archive, launch.code_sha256)
        loaded_code.begin(copied, launch.code_sha256)
        if copied:  # where the script really was when it was submitted
            sys.path[0] = str(Path(next(iter(copied))).parent)
        content = submitted_code.source(copied, script)
        exec(compile(content, script, "exec"), namespace)
        script_ended()
    except SystemExit as leaving:
        last_message.report(leaving)
        script_ended(leaving)
        raise
    except BaseException as error:
        script_failed()
        as_main.fail(error)
    finally:
        last_message.watch_end()


def _same_randomness_and_own_threads(job: ForkJob) -> None:
    """Seed the random generators, so that what a script draws before it creates its session (a split, the initial
    weights) is the same on all nodes of its trainer and after a restart; a script that sets its own seeds is
    unaffected. Also set the number of threads, which has to be done through torch.
    """
    import torch

    from pilot.train.data.rng import seed_all

    seed = seed_of(os.environ)
    seed_all(seed)
    if (accelerator := torch.accelerator.current_accelerator()) is not None:
        torch.get_device_module(accelerator).manual_seed_all(seed)
    torch.set_num_threads(int(os.environ[THREAD_VARIABLES[0]].split(",")[0] or job.threads))


def seed_of(environment: Mapping[str, str]) -> int:
    """``PILOT_SEED``, set by ``pilot submit --seed``; otherwise a number derived from the trainer's name."""
    given = environment.get("PILOT_SEED")
    return int(given) if given is not None else zlib.crc32(environment["PILOT_TRAINER"].encode())


def _default_signals() -> None:
    """Restore default signal handling in processes that a worker forks (a DataLoader's, a Pool's)."""
    for notice in _IGNORED:
        if signal.getsignal(notice) is _ignore:
            signal.signal(notice, signal.SIG_DFL)


def _send(channel: socket.socket, *report: object) -> None:
    channel.send(json.dumps(report).encode())


def _ignore(*_: object) -> None:
    """A handler, not SIG_IGN: exec'ed processes get the default back."""


CHECK_EVERY_BYTES = 1 << 20
"""One process writes so much before it checks the log's length; others may write to it, too."""


class Log(io.FileIO):
    """The log to which a script's output goes. It drops what cannot be written: a full or failing disk is no reason to
    lose a trainer. It is rotated while it is written, so it never grows much beyond ``LOG_BYTES``.
    """

    def __init__(self, descriptor: int, marker: Marker) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._marker = marker
        self._unseen = 0

    def write(self, data: Any, /) -> int:
        """Write ``data``, or drop it if the disk is full or failing; returns its size."""
        self._marker.about_to_write()
        size = memoryview(data).nbytes
        self._unseen += size
        if self._unseen >= CHECK_EVERY_BYTES:
            self._rotate()
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in SICK:
                raise
            return size

    def _rotate(self) -> None:
        """Rotate the log if it is full; if that fails, the next check tries again."""
        self._unseen = 0
        with suppress(OSError):
            if log_marks.is_full(self._marker.log):
                log_marks.rotate_if_full(self._marker.log)
                self._marker.mark()


def take_over(folder: int) -> None:
    """Make ``sys.stdout`` and ``sys.stderr`` write like this, line by line; ``folder`` is that of the log, open."""
    marker = mark_log(1, folder)
    sys.stdout = sys.__stdout__ = _text(1, marker)  # type: ignore[misc]  # typed Final; both names lead to the same file, as ever
    sys.stderr = sys.__stderr__ = _text(2, marker)  # type: ignore[misc]  # as above


def _text(descriptor: int, marker: Marker) -> io.TextIOWrapper:
    raw = Log(descriptor, marker)
    return io.TextIOWrapper(io.BufferedWriter(raw), errors="backslashreplace", line_buffering=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
