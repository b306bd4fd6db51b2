import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pilot.cli import main as cli_main
from pilot.cli import options
from pilot.core.errors import PilotError, UserError

HEAVY = ["torch", "mpi4py", "pyomo", "parsl", "h5py", "cryptography", "numpy", "matplotlib"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from pilot.cli.main import run; status = run(['--help']); "
        f"heavy = [m for m in {HEAVY} if m in sys.modules]; print(heavy, file=sys.stderr); sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
    assert all(name in done.stdout for name in cli_main.COMMANDS)


def test_an_agent_imports_nothing_heavy() -> None:
    code = f"import sys, pilot.agent.runner; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", "its fork server does; the agent starts fast"


def test_the_package_imports_nothing_heavy_until_a_program_submits() -> None:
    light = [*HEAVY, "msgspec", "psutil", "pilot.client"]
    code = f"import sys, pilot; print([m for m in {light} if m in sys.modules], pilot.UserError, pilot.submit)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[] <class 'pilot.core.errors.UserError'> <function submit")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["top"], "pilot top needs textual: pip install 'pilot-train[top]'"),
        (["study", "report", "s"], "pilot study report needs optuna: pip install 'pilot-train[study]'"),
        (["demo"], "pilot demo needs scikit-learn: pip install 'pilot-train[examples]'"),
    ],
)
def test_a_missing_extra_is_named_in_one_line(
    words: list[str],
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(options, "find_spec", lambda _: None)
    monkeypatch.setenv("PILOT_RUN_DIR", str(tmp_path))
    assert cli_main.run(words) == 2
    assert capsys.readouterr().err == f"pilot: {line}\n"


NOT_JSON = {"agent", "logs", "checkpoint", "trace", "top", "completion", "report", "metrics", "study"}


@pytest.mark.parametrize("name", list(cli_main.COMMANDS))
def test_every_command_has_help_with_an_example_and_json_for_scripts(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = cli_main.cli.get_command(click.Context(cli_main.cli), name)
    below = list(command.commands) if isinstance(command, click.Group) else []
    for words in ([name], *([name, other] for other in below)):
        assert cli_main.run([*words, "--help"]) == 0
        text = capsys.readouterr().out
        assert "Example" in text, words
        assert "--json" in text or name in NOT_JSON


def examples() -> list[list[str]]:
    """The command lines in the commands' help."""
    found, todo = [], list[click.Command]([cli_main.cli])
    while todo:
        command = todo.pop()
        if isinstance(command, click.Group):
            context = click.Context(command)
            below = (command.get_command(context, name) for name in command.list_commands(context))
            todo += filter(None, below)
        text = re.sub(r"\\\n\s*", "", command.help or "")
        found += re.findall(r"^ *pilot (\w.*?)(?: [|>&].*)?$", text, re.MULTILINE)
    return [shlex.split(line, comments=True) for line in found]


def test_the_examples_have_options_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = examples()
    assert len(lines) > len(cli_main.COMMANDS)
    for line in lines:
        command, words = cli_main.cli, line
        while isinstance(command, click.Group) and words:
            (name, *words), within = words, command
            command = within.get_command(click.Context(within), name)
        assert command is not None, line
        # Files and pools that an example names need not be there.
        with contextlib.suppress(click.BadParameter, UserError, click.exceptions.NoArgsIsHelpError):
            command.make_context("pilot", words)


def raising(error: BaseException) -> click.Command:
    def callback() -> None:
        raise error

    return click.Command("broken", callback=callback)


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (UserError("no such script: x.py"), 2, "pilot: no such script: x.py\n"),
        (PilotError("the queue is closed"), 1, "pilot: the queue is closed\n"),
        (KeyboardInterrupt(), 130, "pilot: interrupted\n"),
    ],
)
def test_errors_are_one_line(
    error: BaseException, status: int, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli_main, "cli", raising(error))
    assert cli_main.run([]) == status
    # click ends the line of the ^C with its own line break.
    assert capsys.readouterr().err.lstrip() == line


def test_a_bug_leaves_a_log_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(cli_main, "cli", raising(ZeroDivisionError("oops")))
    assert cli_main.run([]) == 1
    shown = capsys.readouterr().err
    (log,) = (tmp_path / "pilot").glob("crash-*.log")
    assert shown == f"pilot: internal error; traceback in {log}\n"
    assert "ZeroDivisionError: oops" in log.read_text()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_ends_a_command_as_ctrl_c_does(name: str) -> None:
    code = (
        "import click, os, signal; from pilot.cli import main; "
        f"hit = lambda: (os.kill(os.getpid(), signal.{name}), signal.pause()); "
        "main.cli = click.Command('x', callback=hit); main.main([])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (130, "pilot: interrupted")


def test_an_unknown_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli_main.run(["sumbit"]) == 2
    assert capsys.readouterr().err == "pilot: No such command 'sumbit'. Did you mean 'submit'?\n"


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-", "<&- >&-"])
def test_with_closed_streams_a_command_does_what_it_does_else(closed: str, tmp_path: Path) -> None:
    command = f"XDG_STATE_HOME={tmp_path} {sys.executable} -m pilot sites {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])


def test_a_disk_that_is_full_under_the_output_is_no_bug(tmp_path: Path) -> None:
    command = f"XDG_STATE_HOME={tmp_path} {sys.executable} -m pilot sites --json >/dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, list(tmp_path.iterdir())) == (1, [])
    assert done.stderr == "pilot: cannot write the output, or a file: No space left on device\n"


IMPORTS_FOR_LONG = """
import os, signal, sys, time
class Slow:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)
sys.meta_path.insert(0, Slow())
sys.argv = ["pilot", "sites"]
from pilot.cli.start import main
main()
"""


@pytest.mark.parametrize("module", ["click", "pilot.cli.sites"])
def test_ctrl_c_while_modules_are_imported_is_one_line(module: str) -> None:
    code = IMPORTS_FOR_LONG.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "pilot: interrupted\n")
