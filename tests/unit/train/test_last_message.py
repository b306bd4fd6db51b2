"""What a script says as it ends: the exception in one line, and whether it is surely the script's own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
import torch

from pilot.core.errors import CheckpointError, UserError
from pilot.core.pool.evidence import HEAD_MAX
from pilot.protocol import wire
from pilot.train.script import last_message

HELP = {
    "BrokenProcessPool": BrokenProcessPool,
    "CheckpointError": CheckpointError,
    "UserError": UserError,
    "subprocess": subprocess,
    "torch": torch,
}


def raised(tmp_path: Path, code: str) -> BaseException:
    """The exception that ends a script of this ``code``."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(code))
    try:
        exec(compile(script.read_text(), str(script), "exec"), dict(HELP))
    except BaseException as error:
        return error
    raise AssertionError("it ends well")


GROUP = "raise ExceptionGroup('two failed', [ValueError('a'), {}])"
FROM = "try:\n    {}\nexcept Exception as error:\n    raise RuntimeError('cannot load') from error"
EXIT = "try:\n    {}\nexcept Exception as error:\n    print(error)\n    raise SystemExit(1)"


@pytest.mark.parametrize(
    ("code", "words", "origin"),
    [
        ("raise ValueError('no labels')", "ValueError: no labels", "line 1: builtins.ValueError"),
        ("\n{}['x']", "KeyError: 'x'", "line 2: builtins.KeyError"),
        ("assert 1 == 2", "AssertionError", "line 1: builtins.AssertionError"),
        (
            "import json\njson.loads('{')",
            "json.decoder.JSONDecodeError: Expecting",
            "line 2: json.",
        ),
        ("import nowhere", "ModuleNotFoundError: No module named 'nowhere'", "line 1: builtins.ModuleNotFoundError"),
        ("raise RuntimeError('Error(s) in\\n\\tloading:')", "RuntimeError: Error(s) in loading:", "line 1: "),
        ("torch.ones(2) @ torch.ones(3)", "RuntimeError: inconsistent tensor size", "line 1: builtins.RuntimeError"),
        ("raise SystemExit('no data\\nleft')", "no data left (exit status 1)", "line 1: builtins.SystemExit"),
        ("raise SystemExit(2)", "", "line 1: builtins.SystemExit"),
        ("raise SystemExit(1)", "", "line 1: builtins.SystemExit"),
        (EXIT.format("{}['x']"), "KeyError: 'x' (exit status 1)", "line 2: builtins.KeyError"),
        (
            GROUP.format("KeyError('b')"),
            "ExceptionGroup: two failed (2 sub-exceptions): ValueError: a",
            "line 1: builtins",
        ),
        (FROM.format("{}['x']"), "RuntimeError: cannot load", "line 4: builtins.RuntimeError"),
        ("raise UserError('no batch')", "line 1: no batch", "line 1: pilot.core.errors.UserError"),
        # what a node may cause
        ("open('/nowhere/x')", "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/x'", ""),
        ("raise MemoryError", "MemoryError", ""),
        (FROM.format("open('/nowhere/x')"), "RuntimeError: cannot load", ""),
        (EXIT.format("open('/nowhere/x')"), "FileNotFoundError: [Errno 2] No such file or directory", ""),
        (GROUP.format("OSError('b')"), "ExceptionGroup: two failed (2 sub-exceptions): ValueError: a", ""),
        ("raise torch.OutOfMemoryError('CUDA out of memory')", "torch.OutOfMemoryError: CUDA out of memory", ""),
        ('raise RuntimeError("DefaultCPUAllocator: can\'t allocate memory")', "RuntimeError: DefaultCPUAllocator", ""),
        ("raise RuntimeError('DataLoader worker (pid 7) is killed by signal')", "RuntimeError: DataLoader worker", ""),
        ("raise BrokenProcessPool('A process was terminated')", "concurrent.futures.process.BrokenProcessPool: A ", ""),
        ("raise ImportError('libcuda.so.1: cannot open shared object file')", "ImportError: libcuda.so.1", ""),
        ("raise torch.distributed.DistNetworkError('refused')", "torch.distributed.DistNetworkError: refused", ""),
        ("subprocess.run('kill -9 $$', shell=True, check=True)", "subprocess.CalledProcessError: Command", ""),
        ("raise CheckpointError('it is damaged')", "line 1: it is damaged", ""),
    ],
)
def test_an_exception(tmp_path: Path, code: str, words: str, origin: str) -> None:
    error = raised(tmp_path, code)
    assert last_message.words(error).replace(f"{tmp_path}/train.py, ", "").startswith(words)
    assert bool(words) == bool(last_message.words(error))
    where = last_message.origin(error)
    assert where.removeprefix(f"{tmp_path}/train.py, ").startswith(origin)
    assert bool(origin) == bool(where)


@pytest.mark.parametrize(
    ("code", "no_memory"),
    [
        ("raise MemoryError", True),
        ("raise torch.OutOfMemoryError('CUDA out of memory')", True),
        (FROM.format("raise MemoryError"), True),
        ("raise RuntimeError('CUDA out of memory')", False),
        ("raise ValueError", False),
    ],
)
def test_a_lack_of_memory_is_told_by_the_class_of_the_exception(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, no_memory: bool
) -> None:
    told: list[wire.ScriptRaised] = []
    monkeypatch.setattr(last_message, "send", told.append)
    last_message.report(raised(tmp_path, code))
    assert [message.out_of_memory for message in told] == [no_memory]


def test_the_place_is_the_innermost_line_of_the_users() -> None:
    def load(index: int) -> None:
        [][index]

    def origin(index: int) -> str:
        try:
            load(index)
        except IndexError as error:
            return last_message.origin(error)
        return ""

    assert origin(1) == origin(2) != ""


def test_a_script_that_is_no_python_has_a_place(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("foo(\n")
    try:
        compile("foo(\n", str(tmp_path / "train.py"), "exec")
    except SyntaxError as error:
        assert last_message.words(error) == "SyntaxError: '(' was never closed (train.py, line 1)"
        assert last_message.origin(error) == f"{tmp_path}/train.py, line 1: builtins.SyntaxError"


class _Silent(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_strange_exceptions_have_words() -> None:
    assert last_message.words(ValueError("x" * 9999)) == f"ValueError: {'x' * (HEAD_MAX - 13)}…"
    assert last_message.words(_Silent()).endswith("_Silent")
    worker = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n  File 'x'\n"
    )
    assert last_message.words(KeyError(f"{worker}KeyError: 'x'")) != ""
    assert last_message.words(ValueError(f"{worker}ValueError: no labels\n")) == "ValueError: no labels"
    ring = ValueError("a")
    ring.__cause__ = KeyError("b")
    ring.__cause__.__context__ = ring
    assert last_message.origin(ring) == ""


def test_what_holds_a_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [threading.main_thread(), threading.Thread(daemon=True)]
    monkeypatch.setattr(threading, "enumerate", lambda: there)  # other tests may have left some
    assert last_message.what_holds() == "what it does at its exit (atexit)"
    there += [threading.Thread(name=f"t{n}") for n in range(7)]
    named = ", ".join(f"its thread t{n}" for n in range(5))
    assert last_message.what_holds() == f"{named} and 2 more"


ENDS = """
import os
from pilot.train.script import last_message
child = os.fork()
last_message.report(ValueError("no file \\udcff") if child else KeyError("in a fork"))
if child:
    os.waitpid(child, 0)
os._exit(0)
"""


def test_only_the_scripts_own_process_reports_in_characters_that_can_be_sent() -> None:
    agent, own = socket.socketpair()
    with agent:
        with own:
            given = os.environ | {"PILOT_CONTROL_FD": str(own.fileno())}
            command = [sys.executable, "-c", ENDS]
            subprocess.run(command, env=given, pass_fds=[own.fileno()], start_new_session=True, check=True)
        said = b"".join(iter(lambda: agent.recv(1 << 16), b""))
    assert b"ValueError: no file \\udcff" in said and b"in a fork" not in said


def test_the_status_is_that_of_the_process(tmp_path: Path) -> None:
    codes = ["raise SystemExit('no')", "raise SystemExit(259)", "raise UserError('no')", "raise ValueError"]
    assert [last_message._status(raised(tmp_path, code)) for code in codes] == [1, 3, 2, 1]
