"""``pilot sites new``: a site file for a machine that is not listed."""

from __future__ import annotations

import shutil
import sys
from typing import Any

import click

from pilot.cli.options import json_option
from pilot.core.errors import SiteError
from pilot.host import private_folder
from pilot.host.files import publish
from pilot.site.site import Site, SiteMistakes
from pilot.site.site_files import list_sites, user_dir
from pilot.site.template import comments, new_file, value_of

SUBMITS = {"slurm": "sbatch", "pbspro": "qsub", "lsf": "bsub"}
"""Scheduler → its command, by which it is found."""

ASKED = {
    "partition": ("slurm",),
    "queue": ("pbspro", "lsf"),
    "qos": ("slurm",),
    **dict.fromkeys(("account", "walltime", "max_jobs", "scheduler_options"), tuple(SUBMITS)),
    "select_options": ("pbspro",),
    **dict.fromkeys(("notice_signal", "grace_s", "cores_per_node", "ranks_per_node", "launcher"), tuple(SUBMITS)),
    **dict.fromkeys(("prologue", "python", "interface"), tuple(SUBMITS)),
}
"""The fields that are asked for, and with which schedulers."""


def _field_options(function: Any) -> Any:
    """An option for each field; the help shows those that are asked for."""
    for name, comment in reversed(comments().items()):
        if name != "name":
            hidden = name != "scheduler" and name not in ASKED
            kind = "SECONDS" if name.endswith("_s") else "VALUE"
            sentence = f"{comment[:1].upper()}{comment[1:].rstrip('.')}."
            option = click.option(f"--{name.replace('_', '-')}", name, metavar=kind, help=sentence, hidden=hidden)
            function = option(function)
    return function


@click.command("new")
@click.argument("name")
@_field_options
@json_option
@click.pass_context
def command(context: click.Context, /, name: str, as_json: bool, **given: str | None) -> int:
    """Write a site file for a machine that is not listed, and run pilot doctor on it, as pilot doctor --json with
    --json. Where its input is a terminal, it asks for what the options do not give. Exit status 1 if doctor finds
    something that must be fixed; the file stays.

    Every field of a site is an option, also those that are not shown here: see docs/reference/site-file.md.

    \b
    Examples:
      pilot sites new mine
      pilot sites new mine --scheduler slurm --partition preempt --account abcd
    """
    from pilot.cli import doctor

    if name in (sites := list_sites()):
        raise SiteError(f"there is a site {name}, {sites[name]}; edit that file, or choose another name")
    if name.endswith(".py"):
        raise SiteError(f"NAME {name!r}: give the site's name, without .py")
    values: dict[str, Any] = {"name": name}
    values |= {field: value_of(field, text) for field, text in given.items() if text is not None}
    _check({"scheduler": "local"} | values if "scheduler" not in values else values)
    _complete(values)
    _check(values)
    path = user_dir() / f"{name}.py"
    try:
        private_folder.make(path.parent)
        publish(path, new_file(values).encode())
    except OSError as error:
        raise SiteError(f"cannot write {path}: {error.strerror}") from None
    click.echo(f"wrote {path}; what pilot doctor says about it:", err=as_json)
    status: int = context.invoke(doctor.command, site=name, as_json=as_json)
    return status


def _complete(values: dict[str, Any]) -> None:
    """Add the scheduler that is found here, and the answers to what ``values`` lack if somebody can answer."""
    asks = sys.stdin.isatty()
    if asks:
        click.echo(
            "Enter keeps what is in brackets, or the default. The file has all other fields in comments.", err=True
        )
    if "scheduler" not in values:
        found = next((scheduler for scheduler, program in SUBMITS.items() if shutil.which(program)), None)
        values["scheduler"] = _answer("scheduler", found, values) if asks else found
    if values["scheduler"] is None:
        raise SiteError(f"none of {', '.join(SUBMITS.values())} is on this machine's PATH; give --scheduler")
    usual = Site(name="usual", scheduler=values["scheduler"])
    for field, schedulers in ASKED.items() if asks else ():
        if field not in values and usual.scheduler in schedulers:
            default = getattr(usual, field)
            if (answer := _answer(field, default, values)) != default:
                values[field] = answer


def _answer(field: str, default: object, known: dict[str, object]) -> object:
    """What the user answers; asks again as long as it is wrong."""

    def read(text: str) -> object:
        value = value_of(field, text) if text else default
        wrong = [line for line in _mistakes(known | {field: value}) if line.startswith(f"{field}:")]
        if wrong:
            raise click.BadParameter("; ".join(wrong))
        return value

    shown = "" if default is None else str(default)
    text = f"{field} ({comments()[field]})"
    return click.prompt(text, default=shown, show_default=bool(shown), value_proc=read, err=True)


def _check(values: dict[str, object]) -> None:
    """:class:`SiteError` with all mistakes in ``values``."""
    if mistakes := _mistakes(values):
        raise SiteError("; ".join(mistakes))


def _mistakes(values: dict[str, Any]) -> list[str]:
    try:
        Site(**values)
    except SiteMistakes as error:
        return error.lines
    return []
