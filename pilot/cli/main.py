"""The ``pilot`` command: finds the command, prints errors in one line, keeps tracebacks off the screen.

A command ``x-y`` is the click command ``command`` in ``pilot/cli/x_y.py``, imported only when it is used.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import time
import traceback
from pathlib import Path

import click

from pilot import __version__
from pilot.core.errors import PilotError, one_line
from pilot.io.printable import printable

COMMANDS = {
    "up": "Start the coordinator and keep pilots submitted.",
    "down": "Drain: trainers checkpoint, pilots and jobs go.",
    "scale": "Keep another number of pilots in a pool that is up.",
    "check": "Check that a script trains on several nodes what it trains alone.",
    "submit": "Submit a training script as an elastic trainer.",
    "study": "Search hyperparameters: trials that are shelved or promoted.",
    "resume": "Have a trainer that failed or was cancelled go on.",
    "hold": "Have a trainer give its nodes back for a while.",
    "release": "Let a trainer that is held have nodes again.",
    "rm": "Remove trainers that have ended, with their files.",
    "ls": "List the trainers.",
    "status": "Show the pool, the trainers and the last decisions.",
    "top": "Watch the pool live in the terminal.",
    "nodes": "List the nodes and what is set aside; clear one that is well again.",
    "logs": "Print what a trainer's script wrote.",
    "wait": "Wait until trainers have ended.",
    "cancel": "End a trainer.",
    "events": "Print what happened, and what happens.",
    "report": "Write what happened in a pool as one HTML page.",
    "metrics": "Print the pool's status for Prometheus, or serve it.",
    "explain": "Say why a trainer holds the nodes that it holds.",
    "demo": "Run the main job on this machine: pilots, losses, recovery.",
    "agent": "Run on a node: join a pool and train.",
    "completion": "Print what makes a shell complete pilot's commands.",
    "sites": "List, show and check site configs.",
    "doctor": "Check what goes wrong in practice and say how to mend it.",
    "checkpoint": "List, verify, show and export checkpoints.",
    "replay": "Replay a trace of idle nodes through the scheduling core.",
    "trace": "Describe, synthesise, import and record traces.",
}
"""Name → one line. A table, so that ``pilot --help`` imports none of them."""

INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """All names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import the command's module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"pilot.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """The table, without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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


def main(arguments: list[str] | None = None) -> None:
    """Run a command and end the process with its exit status."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files need not be text
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores one of them
            signal.signal(number, signal.default_int_handler)  # as Ctrl-C: what a command has begun is ended
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run a command; its exit status: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        result = cli.main(args=arguments, prog_name="pilot", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        click.echo(f"pilot: {one_line(error.format_message())}", err=True)
        return 2
    except PilotError as error:
        click.echo(f"pilot: {printable(str(error))}", err=True)
        return error.exit_status
    except (click.Abort, KeyboardInterrupt):
        click.echo("pilot: interrupted", err=True)
        return INTERRUPTED
    except Exception:
        click.echo(f"pilot: this is a bug of ours; {_crash()}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _crash() -> str:
    """Where the traceback of the current exception is, or its last line where nothing can be written."""
    try:
        return f"what happened is in {_crash_log()}"
    except (OSError, RuntimeError):  # no room, no home
        return one_line(traceback.format_exc().splitlines()[-1])


def _crash_log() -> Path:
    """Write the traceback of the current exception where the user can find it."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "pilot"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = base / f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    text = f"pilot {__version__}, arguments: {sys.argv[1:]}\n{traceback.format_exc()}"
    path.write_text(text, errors="backslashreplace")
    return path


if __name__ == "__main__":
    main()
