"""Preempt and kill pilots, as a batch system or a failing node would."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass

import psutil

from pilot.io import proc


@dataclass(frozen=True, slots=True)
class Victim:
    """A pilot: its trainer, its node, its agent's process on this host, and the site's grace period."""

    trainer: str
    node: str
    pid: int
    grace_s: float


def preempt(victim: Victim) -> threading.Thread:
    """Send the pilot's processes SIGTERM, and the survivors SIGKILL after the grace period, as a batch system does."""
    tree = proc.tree(victim.pid)
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    killer = threading.Thread(target=_kill_after, args=(tree, victim.grace_s), daemon=True)
    killer.start()
    return killer


def kill_without_notice(victim: Victim) -> None:
    """Send SIGKILL to the pilot's whole process tree, as if its node had failed."""
    proc.kill(proc.tree(victim.pid))


def _kill_after(tree: list[psutil.Process], grace_s: float) -> None:
    _, left = psutil.wait_procs(tree, timeout=grace_s)
    proc.kill(left)
