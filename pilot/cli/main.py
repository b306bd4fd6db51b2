"""The ``pilot`` command: dispatches to a subcommand, prints errors as one line, keeps tracebacks off the screen.

A subcommand's module, named as it is or in ``PLACES``, is imported only when it is used.
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

import click

from pilot.cli.start import INTERRUPTED, end_at_once, ends_at_once
from pilot.core.errors import PilotError, one_line
from pilot.core.version import __version__
from pilot.host import private_folder
from pilot.host.files import SICK, publish
from pilot.host.printable import PrintableStream

COMMANDS = {
    "up": "Start the coordinator and keep pilots submitted.",
    "down": "Shut the pool down: trainers checkpoint, jobs end.",
    "pools": "List your pools.",
    "scale": "Change how many pilots a running pool keeps.",
    "check": "Check that a script computes the same on several nodes as on one.",
    "submit": "Submit a training script as an elastic trainer.",
    "study": "Search hyperparameters; the better trials train longer.",
    "resume": "Continue a trainer that failed or was cancelled.",
    "hold": "Take a trainer's nodes away for a while.",
    "release": "Give a held trainer nodes again.",
    "rm": "Delete trainers that have ended, with their files.",
    "ls": "List the trainers.",
    "status": "Show the pool, the trainers and the last decisions.",
    "top": "Watch the pool live in the terminal.",
    "nodes": "List the nodes, with those set aside after failures.",
    "logs": "Print the output of a trainer's script.",
    "wait": "Wait for trainers to end.",
    "cancel": "End a trainer.",
    "events": "Print the events of a pool; -f follows.",
    "report": "Write a pool's history as one HTML page.",
    "ledger": "Prove that a trainer used every sample once per epoch.",
    "metrics": "Print or serve metrics for Prometheus.",
    "explain": "Explain why a trainer has the nodes that it has.",
    "demo": "Show it working on this machine: pilots, losses, recovery.",
    "agent": "Join a pool with this node (what a pilot job runs).",
    "completion": "Print a shell's completion script.",
    "sites": "List, show, check and write site files.",
    "doctor": "Check this host and a site for what goes wrong in practice.",
    "checkpoint": "List, verify, show and export checkpoints.",
    "replay": "Replay a trace of idle nodes through the scheduling core.",
    "trace": "Describe, generate, import and record traces.",
}
"""Name → one-line help. A table, so that ``pilot --help`` imports none of the commands."""

PLACES = {
    **{name: f"views:{name}" for name in ("status", "ls", "nodes", "explain", "pools")},
    **{name: f"control:{name}" for name in ("cancel", "hold", "release", "rm", "scale", "wait", "down")},
    "resume": "submit:resume",
    "report": "events:report",
    "ledger": "events:ledger",
    "completion": "candidates:completion",
    "replay": "research.replay:command",
    "trace": "research.trace:command",
}
"""Module and name of the commands that are not ``command`` in a module of their own name."""


class LazyGroup(click.Group):
    """A click group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """All names, in table order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        with ends_at_once():
            module, name = PLACES.get(cmd_name, f"{cmd_name}:command").split(":")
            command: click.Command = getattr(importlib.import_module(f"pilot.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Print the table; imports nothing."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.group(cls=LazyGroup, context_settings=HELP)
@click.version_option(__version__, prog_name="pilot")
def cli() -> None:
    """Turn the idle nodes of a supercomputer into elastic deep-learning training.

    \b
    Example:
      pilot up --site local --pilots 4
      pilot submit examples/digits_cnn.py
      pilot status
      pilot down
    """


cli.commands = {name: click.Command(name) for name in COMMANDS}  # for their names: click suggests the closest one


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit with its status."""
    for name in ("stdout", "stderr"):
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            setattr(sys, name, PrintableStream(stream))  # all commands write here, except the output of pilot logs
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one of them
            signal.signal(number, _interrupt_once)
    status = run(arguments)
    end_at_once()
    sys.exit(status)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    """Like Ctrl-C, so that commands clean up. A second signal does not interrupt the cleanup: timeout(1) signals the
    process, then its group.
    """
    signal.signal(number, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def run(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit status: 0 success, 1 failure, 2 bad input, 130 interrupted."""
    try:
        result = cli.main(args=arguments, prog_name="pilot", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        click.echo(f"pilot: {one_line(' '.join(error.format_message().split()))}", err=True)
        return 2
    except PilotError as error:
        click.echo(f"pilot: {error}", err=True)
        return error.exit_status
    except (click.Abort, KeyboardInterrupt):
        click.echo("pilot: interrupted", err=True)
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, OSError) and error.errno in SICK | {errno.EBADF}:
            return _sick(error)
        click.echo(f"pilot: internal error; {_save_traceback()}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _sick(error: OSError) -> int:
    """Print that a file, or standard output, cannot be read or written."""
    where = f"cannot use {error.filename}" if error.filename else "cannot write the output, or a file"
    click.echo(f"pilot: {one_line(f'{where}: {error.strerror}')}", err=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # any further output would fail again, with a traceback
    return 1


def _save_traceback() -> str:
    """Save the current exception's traceback; returns where it is, or its last line if it cannot be saved."""
    text = traceback.format_exc()
    try:
        base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pilot"
        private_folder.make(base)
        path = base / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        content = f"pilot {__version__}, arguments: {sys.argv[1:]}\n{text}"
        publish(path, content.encode(errors="backslashreplace"))
    except (OSError, RuntimeError):  # disk full, or no home directory
        return one_line(text.splitlines()[-1])
    return f"traceback in {path}"


if __name__ == "__main__":
    main()
