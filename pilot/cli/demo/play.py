"""The demo's script: start everything, preempt and kill as a batch system or a failing node would, watch, and drain."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pilot.agent import workdir
from pilot.cli.control import wait_until_gone
from pilot.cli.demo.leftovers import left_behind, unowned
from pilot.cli.rows import trainer_rows
from pilot.cli.show import node_lines
from pilot.cli.up import coordinator_command, start
from pilot.client.launching import launch
from pilot.client.pools import pool_at
from pilot.core.errors import PilotError, UserError
from pilot.core.trainer.spec import Checking
from pilot.core.trainer.trainer import Phase
from pilot.host import proc
from pilot.protocol.pool_status import PoolStatus
from pilot.site.site_files import load_site_file
from pilot.submission.submission import Submission

PILOTS = 4
POLL_S = 0.4
LIMIT_S = 240.0
"""The demo fails if no trainer makes a step for this long. All of it takes a minute and a half on two cores."""

EPOCHS = {"cnn": 165, "mlp": 240}
"""Enough, on two cores, for everything to happen before the trainers finish."""

ON_FASTER_MACHINES = (1, 3, 15)
"""If the trainers finish too early, the demo is repeated with this many times the epochs."""

TRAINERS: dict[str, tuple[str, list[tuple[float, float]]]] = {
    "cnn": ("digits_cnn.py", [(1, 100.0), (2, 190.0), (3, 255.0), (4, 310.0)]),
    "mlp": ("digits_mlp.py", [(1, 400.0), (2, 740.0), (3, 860.0), (4, 920.0)]),
}
"""Name → example and scaling curve. With four nodes, two each is optimal; with three, the CNN gains more from two."""


Ask = Callable[[], PoolStatus]
"""Polls the pool."""


@dataclass(slots=True)
class DemoRun:
    """The data of the demo's report: ``happened`` lists the events with their times; ``status`` is the last status."""

    folder: Path
    root: Path
    epochs: dict[str, int]
    grace_s: float
    started_s: float
    status: PoolStatus
    happened: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Victim:
    """A pilot: its trainer, its node, its agent's process on this host, and the site's grace period."""

    trainer: str
    node: str
    pid: int
    grace_s: float


class Outpaced(PilotError):
    """The trainers finished too early."""


def play(console: Console, folder: Path, site: str, epochs: int | None) -> DemoRun:
    """Run the demo in ``folder``; nothing is left running, whatever happens."""
    examples = find_examples()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder} for the results: {error.strerror}") from None
    factors = (1,) if epochs else ON_FASTER_MACHINES
    *others, last = ({name: f * (epochs or count) for name, count in EPOCHS.items()} for f in factors)
    console.print(f"Starting a coordinator and {PILOTS} pilots; files in {folder}")
    for planned in others:
        try:
            return _play(console, folder, site, examples, planned)
        except Outpaced as error:
            console.print(f"{error}; this machine is fast: trying again with more epochs")
    return _play(console, folder, site, examples, last)


def _play(console: Console, folder: Path, site: str, examples: Path, epochs: dict[str, int]) -> DemoRun:
    root, began_s = folder / "run", time.monotonic()
    before = unowned()
    # Inherited by everything that the pool starts, so that leftovers can be told from other pools' processes.
    os.environ["PILOT_RUN_DIR"] = str(root)
    # A new pool: a repeated demo would otherwise continue the first one, whose trainers have the same names.
    status = start(root, coordinator_command(root, site, {"": PILOTS}, t_fwd_s=60.0, fresh=True))
    run = DemoRun(folder, root, epochs, load_site_file(site).site.grace_s, began_s, status)
    try:
        with _screen(console, run) as ask:
            _submit(run, examples)
            _disturb(run, ask)
    finally:
        run.took_s = time.monotonic() - run.started_s
        _drain(run)
        run.leftovers = left_behind(run.root, before)
    return run


def find_examples() -> Path:
    """The folder with the example scripts, from the checkout or as installed by the wheel."""
    folders = Path(__file__).parents[3] / "examples", Path(sysconfig.get_path("data"), "share", "pilot", "examples")
    for folder in folders:
        if (folder / "digits_cnn.py").exists():
            return folder
    raise UserError(f"the demo's example scripts are missing from {' and '.join(map(str, folders))}; reinstall pilot")


def _submit(run: DemoRun, examples: Path) -> None:
    for name, (script, curve) in TRAINERS.items():
        submission = Submission(
            launch=launch(examples / script, ["--epochs", str(run.epochs[name])], sys.executable, ()),
            name=name,
            max_nodes=PILOTS,
            curve=curve,
            fixed_curve=True,
            rescale_up_s=1.0,
            rescale_down_s=0.5,
            check=Checking.OFF,
        )
        pool_at(run.root).submit(submission)


def _disturb(run: DemoRun, ask: Ask) -> None:
    """Put the pool through its events. Each step waits for the previous one."""
    _until(run, ask, "two trainers on two nodes each", _train_on_two_nodes_each)
    victim = _victim(run, ask())
    _report(run, f"preempting {victim.node} of {victim.trainer}: SIGTERM, then SIGKILL after the site's grace period")
    preempt(victim)
    _until(run, ask, "its trainer continues without it", lambda status: _survived(status, victim))
    victim = _victim(run, ask())
    _report(run, f"killing {victim.node} of {victim.trainer} without notice: SIGKILL to all of its process tree")
    kill_without_notice(victim)
    known = {n.node for n in ask().pool}
    _until(run, ask, "its trainer continues without it", lambda status: _survived(status, victim))
    _until(run, ask, "a new pilot trains", lambda s: any(n not in known for t in s.trainers for n in t.nodes))
    _report(run, "a new pilot trains, too")
    _until(run, ask, "both trainers have finished", lambda s: all(t.phase is Phase.FINISHED for t in s.trainers))


def _until(run: DemoRun, ask: Ask, what: str, reached: Callable[[PoolStatus], bool]) -> None:
    steps, stepped_s = 0, time.monotonic()
    while not reached(status := ask()):
        if ended := [t for t in status.trainers if t.phase in (Phase.FAILED, Phase.CANCELLED)]:
            raise PilotError(f"{ended[0].trainer} {ended[0].phase}: {ended[0].reason}")
        if all(t.phase is Phase.FINISHED for t in status.trainers):
            raise Outpaced(f"the trainers finished too early for this: {what} (give them more --epochs)")
        if (now := sum(t.step for t in status.trainers)) != steps:
            steps, stepped_s = now, time.monotonic()
        if time.monotonic() - stepped_s > LIMIT_S:
            log = run.root / "coordinator.log"
            raise PilotError(f"no trainer made a step for {LIMIT_S:g} s, waiting for this: {what}; see {log}")
        time.sleep(POLL_S)


def _train_on_two_nodes_each(status: PoolStatus) -> bool:
    return [len(t.nodes) for t in status.trainers] == [2, 2] and all(t.step >= 20 for t in status.trainers)


def _survived(status: PoolStatus, victim: Victim) -> bool:
    """Whether, without ``victim``, every trainer trains, and one of them can lose another node and keep its state."""
    sizes = [len(t.nodes) for t in status.trainers]
    return all(n.node != victim.node for n in status.pool) and min(sizes) >= 1 and max(sizes) >= 2


def _victim(run: DemoRun, status: PoolStatus) -> Victim:
    """The last node of the trainer with the most nodes, which continues without it."""
    trainer = max(status.trainers, key=lambda t: len(t.nodes))
    node = trainer.nodes[-1]
    pid = next(p.pid for p in pool_at(run.root).pilots().pilots if p.node == node)
    assert pid is not None  # it is training, so it has identified itself
    return Victim(trainer.trainer, node, pid, run.grace_s)


def _report(run: DemoRun, text: str) -> None:
    run.happened.append(f"{time.monotonic() - run.started_s:5.1f} s  {text}")


def _drain(run: DemoRun) -> None:
    pool_at(run.root).down()
    wait_until_gone(run.root, LIMIT_S)
    workdir.sweep()


@contextmanager
def _screen(console: Console, run: DemoRun) -> Iterator[Ask]:
    """A live view; yields a function that polls the pool and shows its status."""
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def ask() -> PoolStatus:
            status = run.status = pool_at(run.root).status()
            clock = Text(f"{time.monotonic() - run.started_s:.0f} s", style="bold")
            trainers = trainer_rows(status.trainers, console.width)
            nodes = node_lines(status.pool, status.now_s, console.width)
            live.update(Group(clock, *trainers, Text(), *nodes, Text(), *map(Text, run.happened)), refresh=True)
            return status

        yield ask


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
    """Send SIGKILL to the pilot's process tree, as if its node had failed."""
    proc.kill(proc.tree(victim.pid))


def _kill_after(tree: list[psutil.Process], grace_s: float) -> None:
    _, left = psutil.wait_procs(tree, timeout=grace_s)
    proc.kill(left)
