"""How long PBS lets a pilot live after TERM, measured with a real job: a queue only shows it if its admin set it."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pilot.core.errors import PilotError
from pilot.doctor.finding import Finding, fail, warn
from pilot.doctor.queue_checks import grace
from pilot.doctor.stay import lived_s
from pilot.provisioning.keeper_factory import make_queue
from pilot.provisioning.provider import PilotProvider
from pilot.provisioning.scheduler import JobPhase, Queue
from pilot.site.site_files import SiteFile

CHECK = "kill delay"
POLL_S = 1.0
LONGEST_S = 600.0
"""A job that PBS has not killed by then is deleted by force."""


def tried(site_file: SiteFile, folder: Path, limit_s: float) -> Iterator[Finding]:
    """Submit a job that ignores TERM, delete it, and measure when it is killed. Its output goes to ``folder``, which
    the nodes must see; it may take ``limit_s`` to start. Everything is removed afterwards.

    Does not work as root: MoM does not count root's processes, so it thinks the job has none when TERM is sent.
    """
    site, notes = site_file.site, folder / "stay"
    provider = PilotProvider(site_file, folder)
    queue = make_queue(site, folder.name, provider)
    command = shlex.join([site.python or sys.executable, "-P", "-m", "pilot.doctor.stay", str(notes)])
    provider.prepare()
    job = provider.submit(command, folder.name)
    try:
        came = _until(notes.exists, limit_s)
        queue.cancel([job])
        if not came:
            yield warn(
                CHECK, f"not measured: {job} did not start within {limit_s:g} s", "try again when the queue is short"
            )
            return
        gone = _until(lambda: _is_over(queue, job), LONGEST_S)
        delay_s = lived_s(notes.read_text())
        if not gone:
            yield warn(CHECK, f"PBS did not kill {job} within {LONGEST_S:g} s of TERM", "grace_s may be as long")
        elif delay_s is None:
            yield fail(CHECK, "PBS kills without sending TERM first", "set grace_s=0 in the site file")
        else:
            yield grace(site, round(delay_s, 1))
    finally:
        if not _is_over(queue, job):
            queue.kill([job])


def _is_over(queue: Queue, job: str) -> bool:
    """Whether the job is over according to PBS; no answer counts as no."""
    try:
        view = queue.poll([job], time.time()).jobs.get(job)
    except PilotError:
        return False
    return view is None or view.phase is JobPhase.OVER


def _until(reached: Callable[[], bool], limit_s: float) -> bool:
    """Whether ``reached`` became true within ``limit_s``."""
    end_s = time.monotonic() + limit_s
    while not reached():
        if time.monotonic() > end_s:
            return False
        time.sleep(POLL_S)
    return True
