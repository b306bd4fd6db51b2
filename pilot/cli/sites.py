"""``pilot sites``: list the sites, show what would be submitted to one, check a site file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from launchers.batch import batch_script
from launchers.steps import agent_command
from pilot.cli import new_site
from pilot.cli.options import answers, to_json
from pilot.cli.show import print_table
from pilot.core.errors import PilotError, SiteError, one_line
from pilot.protocol.pool_status import Answer
from pilot.rundir.rundir import RunDir, default_path
from pilot.site.pilot_counts import check as check_pilots
from pilot.site.site_files import SiteFile, list_sites, load_site, load_site_file, site_mistakes


class SiteRow(Answer, frozen=True):
    """One site file."""

    name: str  #: the site's name
    path: str  #: the path of its file
    error: str = ""  #: what is wrong with the file, in one line; empty: it loads (only then are the fields below set)
    scheduler: str = ""  #: such as `slurm`
    queue: str = ""  #: its partition or queue, and its QOS
    walltime: str = ""  #: the walltime of a pilot's job
    max_jobs: str = ""  #: how many jobs may be queued or running at once, and per what
    description: str = ""  #: the machine in a few words
    retired: str = ""  #: when the machine was shut down; empty: it is in use


class SiteList(Answer, frozen=True):
    """What `pilot sites --json` prints."""

    sites: list[SiteRow]  #: every site file found


class SiteShown(Answer, frozen=True):
    """What `pilot sites show --json` prints."""

    path: str  #: the path of the site's file
    site: dict[str, Any]  #: its fields, as docs/reference/site-file.md describes them
    script: str  #: the batch script that would be submitted


class SiteChecked(Answer, frozen=True):
    """What `pilot sites check --json` prints."""

    file: str  #: the file as given on the command line
    mistakes: list[str]  #: one line each; empty: the file is valid


@click.group(invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the sites, show what would be submitted to one, check a site file, write one for another machine.

    \b
    Examples:
      pilot sites
      pilot sites new mine
      pilot sites show delta
      pilot sites show delta --own-script > pilot.sh
      pilot sites check ~/.config/pilot/sites/mine.py
    """
    if context.invoked_subcommand is None:
        rows = [_row(name, path) for name, path in list_sites().items()]
        click.echo(to_json(SiteList(sites=rows))) if as_json else _print_table(rows)


@command.command()
@click.argument("site")
@click.option(
    "--own-script", is_flag=True, help="A batch script that you submit yourself to join a pool, instead of Parsl's."
)
@click.option("--type", "node_type", metavar="NAME", help="For pilots of this type of nodes.")
@answers
def show(site: str, own_script: bool, node_type: str | None) -> tuple[Any, ...]:
    """Print the exact script that would be submitted to SITE. Nothing is submitted. SITE is a name or a path.

    \b
    Example:
      pilot sites show polaris
    """
    loaded = load_site_file(site)
    if node_type is not None:
        check_pilots(loaded.site, {node_type: 1})
        loaded = loaded.of_type(node_type)
    rundir = RunDir(default_path(loaded.site.name))
    if own_script:
        script = batch_script(loaded.site, str(rundir.connection), python=sys.executable)
    else:
        from pilot.provisioning.provider import PilotProvider  # imports Parsl: half a second, only when needed

        agent = agent_command(loaded.site, str(rundir.connection))
        script = PilotProvider(loaded, rundir.pilots).script(agent, "pilot")
    answer = SiteShown(path=str(loaded.path), site=msgspec.to_builtins(loaded.site), script=script)
    return answer, lambda: _show(answer.script, loaded, err=True)


@command.command()
@click.argument("file")
@answers
def check(file: str) -> tuple[Any, ...]:
    """Check a site FILE (a path, or a site's name). Prints each mistake with an example of a right value.

    \b
    Example:
      pilot sites check mine.py
    """
    answer = SiteChecked(file=file, mistakes=list(site_mistakes(file)))
    return answer, lambda: _check(answer), SiteError.exit_status if answer.mistakes else 0


command.add_command(new_site.command)


def _check(answer: SiteChecked) -> None:
    for mistake in answer.mistakes:
        click.echo(mistake if Path(answer.file).name in mistake else f"{answer.file}: {mistake}", err=True)
    if not answer.mistakes:
        loaded = load_site_file(answer.file)
        _show(f"{answer.file}: site {loaded.site.name} is valid", loaded)


def _show(text: str, loaded: SiteFile, *, err: bool = False) -> None:
    """Print ``text``, and remarks about the site."""
    click.echo(text.rstrip())
    for remark in _remarks(loaded):
        click.echo(f"note: {remark}", err=err)


def _row(name: str, path: Path) -> SiteRow:
    """One line of the list; a file that does not load is listed with its error."""
    try:
        site = load_site(str(path))
    except PilotError as error:
        return SiteRow(name=name, path=str(path), error=str(error))
    place = "/".join(part for part in (site.partition or site.queue, site.qos) if part)
    return SiteRow(
        name=name,
        path=str(path),
        scheduler=site.scheduler,
        queue=place,
        walltime=site.walltime,
        max_jobs=f"{site.max_jobs} per {site.max_jobs_scope}",
        description=site.description,
        retired=site.retired,
    )


def _print_table(rows: list[SiteRow]) -> None:
    cells = [
        (r.name, r.scheduler, r.queue, r.walltime.removesuffix(":00"), r.max_jobs.replace(" per ", "/"), r.description)
        for r in rows
        if not r.error
    ]
    print_table(("site", "scheduler", "queue", "h:min", "jobs", "description"), cells)
    for row in rows:
        if row.error:
            click.echo(f"{row.name}: {row.error}", err=True)


def _remarks(loaded: SiteFile) -> list[str]:
    """Further facts about the site, for its users."""
    site = loaded.site
    remarks = [f"a pilot is not preempted during its first {site.guaranteed_s:g} s"] if site.guaranteed_s else []
    if site.charge_factor != 1:
        remarks.append(f"an hour is charged as {site.charge_factor:g} hours of the regular queue")
    if site.node_types:
        remarks.append(f"types of nodes: {', '.join(site.node_types)}; pilot sites show --type NAME shows one")
    if site.only_nodes:
        remarks.append(f"pilots run on {site.only_nodes} only; in Slurm the other nodes are excluded at submission")
    if site.scheduler != "local":
        remarks.append(f"source: {site.source}" if site.source else "no source is given for its facts")
    remarks += [f"not verified: {fact}" for fact in site.second_hand]
    if loaded.account_from:
        remarks.append(f"the site file names no account: {site.account} is from {loaded.account_from}")
    if site.scheduler != "local" and site.account is None:
        remarks.append("no account is set; if the site needs one, set it (see docs/reference/site-file.md)")
    remarks += [f"retired: {site.retired}"] if site.retired else []
    return [one_line(remark) for remark in remarks]
