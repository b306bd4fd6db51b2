"""Commands that read a pool's journal: ``pilot events``, ``pilot report``, ``pilot ledger``."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pilot.cli import candidates
from pilot.cli.asking import in_any_pool
from pilot.cli.options import Count, answers, json_option, page_option, trainer_argument
from pilot.client.pools import BACK_S, is_past, journal_of
from pilot.core.errors import UserError, one_line
from pilot.core.ids import TrainerId
from pilot.rundir import rundir as rundirs
from pilot.rundir.rundir import RunDir

if TYPE_CHECKING:
    from pilot.rundir.entries import Entry

POLL_S = 0.5


@click.command("events")
@click.option("-f", "--follow", is_flag=True, help="Keep printing until the pool is down.")
@click.option("-n", "--tail", type=Count(), metavar="N", help="Start with the last N events.")
@click.option("--trainer", metavar="NAME", shell_complete=candidates.trainers, help="Only events of this trainer.")
@in_any_pool
@json_option
def command(follow: bool, tail: int | None, trainer: str | None, root: Path, as_json: bool) -> None:
    """Print the events of a pool, up or down, from its journal: nodes, trainers, plans, checkpoints.

    With --json, one line of JSON per event.

    \b
    Examples:
      pilot events -n 20 -f
      pilot events --trainer vit --json
    """
    from msgspec import json

    from pilot.history.story import Story
    from pilot.protocol.node_names import shortened

    rundir = RunDir(root)
    story = Story(journal_of(rundir).header.started_unix_s)
    found = False
    for entries in _batches(rundir, follow):
        new = (event for entry in entries for event in story.events_of(entry))
        for event in deque((event for event in new if trainer in (None, event.trainer)), tail):
            found = True
            at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.unix_s))
            click.echo(json.encode(event).decode() if as_json else f"{at}  {shortened(one_line(event.text))}")
        tail = None  # print all later events
    if trainer is not None and not found:
        raise UserError(f"no events of a trainer named {trainer!r}; pilot ls --all lists the trainers")


@click.command("report")
@page_option("report.html")
@in_any_pool
def report(root: Path, output: Path | None) -> None:
    """Write the history of a pool, up or down, as one self-contained HTML page.

    It shows the pool's nodes over time, the trainers with their curves, every change of their nodes, and the events.

    \b
    Examples:
      pilot report
      pilot report --output week.html --run-dir ~/pilot/vision
    """
    from pilot.cli.show import write_page
    from pilot.history.page import render
    from pilot.service.requests.pool_report import life_of

    contents = journal_of(RunDir(root))
    write_page(output or Path("report.html"), render(life_of(contents)))


@click.command("ledger")
@trainer_argument
@in_any_pool
@answers
def ledger(root: Path, trainer: str) -> tuple[Any, ...]:
    """Prove from the journal that TRAINER used every sample once per epoch, as far as it got. It may be training, or
    ended; the pool may be up or down. Exit status 1 if that is not so.

    \b
    Example:
      pilot ledger vit
    """
    from pilot.history.ledger import proof
    from pilot.history.trainer_progress import ledgers

    found = ledgers(journal_of(RunDir(root)).decisions).get(TrainerId(trainer))
    if found is None:
        raise UserError(f"no trainer named {trainer!r} in the journal; pilot ls --all lists the trainers")
    verdict = proof(found)
    return verdict, f"{trainer}: {verdict.text}", 0 if verdict.proved else 1


def _batches(rundir: RunDir, follow: bool) -> Iterator[Iterable[Entry]]:
    """The journal's entries, each once and in order: existing ones, then new ones until the pool is down."""
    from pilot.rundir.journal import read_more

    contents = journal_of(rundir)
    yield contents.entries
    last, is_up, seen_s = contents.last, follow, time.monotonic()
    while is_up:
        time.sleep(POLL_S)
        if rundirs.owner(rundir) is not None:
            seen_s = time.monotonic()
        else:  # a crashed coordinator comes back
            is_up = not is_past(rundir.root) and time.monotonic() - seen_s < BACK_S
        if (more := read_more(rundir.journal, last)) is not None:
            last = more
            yield more.entries
        else:
            seen, contents = last.last_seq, journal_of(rundir)
            last = contents.last
            yield (entry for entry in contents.entries if entry.seq > seen)
