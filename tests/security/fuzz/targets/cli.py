"""Every option and argument of every command with every nasty value: success, or one line and exit status 2."""

from __future__ import annotations

import ctypes
import importlib
import os
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click

from pilot.cli import main as cli_main
from pilot.core.errors import UserError
from tests.security.fuzz.target import ACCEPTED, REFUSED, Target, said_once
from tests.security.special_files import put

WORDS = [
    "", " ", "nan", "inf", "-inf", "-1", "0", "1", "1e20", "1e-300", "1e308", "9" * 40, "1,2", "1,nan", ",", "x", "é",
    "x" * 5000, "a\nb", "..", "../../x", "\x1b[2J", "\udcff", "json:loads", "nothing:f", "json:nothing", ":", "a:b:c",
    "nopython", "~nobody/x.py", "~/x", "/", ".", "/dev/zero", "/dev/null", "/dev/full", "/proc/self/mem",
    "/nothing/x",
]  # fmt: skip
FILES = [
    "@fifo", "@folder", "@loop", "@loop/x", "@secret", "@locked", "@locked/x", "@empty", "@garbage", "@file/x",
    "@damaged.h5", "@damaged", "@oddlock", "@fifolock", "@folderlock", "@x.py", "@fifo.py", "@big",
]  # fmt: skip
VALUES = WORDS + FILES

BASE: dict[str, dict[str, str]] = {
    "up": {"--run-dir": "@new", "--pilots": "1"},
    "down": {"--run-dir": "@run"},
    "submit": {"--run-dir": "@run", "script": "@file"},
    "ls": {"--run-dir": "@run"},
    "status": {"--run-dir": "@run"},
    **{
        command: {"--run-dir": "@run", "trainer": "t"}
        for command in ("logs", "cancel", "resume", "hold", "release", "explain")
    },
    **{command: {"--run-dir": "@run", "trainers": "t"} for command in ("wait", "rm")},
    "scale": {"--run-dir": "@run", "pilots": "2"},
    "demo": {"--output": "@new"},
    "agent": {"--connection": "@run/connection.json"},
    "sites": {},
    "sites show": {"site": "local"},
    "sites check": {"file": "local"},
    "doctor": {"--run-dir": "@new"},
    "checkpoint ls": {"paths": "@checkpoints"},
    "checkpoint verify": {"paths": "@checkpoints"},
    "checkpoint show": {"path": "@checkpoints"},
    "checkpoint export": {"path": "@checkpoints", "output": "@out.pt"},
    "replay": {"--planner": "dp", "events": "@events", "--trainers": "@trainers", "--curves": "@curves"},
    "study run": {
        "--run-dir": "@run",
        "--name": "s",
        "--param": "a=int:1:2",
        "--trials": "2",
        "--metric": "m:max",
        "script": "@file",
    },
    **{
        f"study {command}": {"--run-dir": "@run", "study": "s"}
        for command in ("status", "trials", "best", "stop", "resume", "export")
    },
    "study add": {"--run-dir": "@run", "study": "s", "--trials": "3"},
    "study report": {"--run-dir": "@run", "study": "s", "--output": "@new"},
    "trace stats": {"events": "@events"},
    "trace synth": {"--published": "summit", "--hours": "1", "--nodes": "50", "output": "@out.csv"},
    "trace from-swf": {"log": "@swf", "output": "@out.csv"},
    "trace from-sacct": {"log": "@sacct", "output": "@out.csv"},
    "trace from-pbs": {"logs": "@pbs", "output": "@out.csv"},
    "trace record": {"--scheduler": "slurm", "output": "@out.csv"},
}
"""Each command with its required arguments; ``@`` is the folder of the files."""


@dataclass(frozen=True)
class Case:
    """One command line; ``@`` stands for the folder."""

    words: tuple[str, ...]


@cache
def cases() -> list[Case]:
    """All of them, in a fixed order."""
    return list(_cases())


def _cases() -> Iterator[Case]:
    for name, base in BASE.items():
        for parameter in _command(name).params:
            key = parameter.opts[0] if isinstance(parameter, click.Argument) else _long(parameter)
            if isinstance(parameter, click.Option) and parameter.is_flag:
                continue
            for value in VALUES:
                yield Case((*name.split(), *_line({**base, key: value})))
    yield from (Case(("replay", "--journal", value)) for value in FILES)
    yield from (Case((*name.split(), "--nothing")) for name in BASE)
    yield from (Case((name,)) for name in VALUES)


def _command(name: str) -> click.Command:
    command: click.Command = cli_main.cli
    for word in name.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command


def _long(parameter: click.Parameter) -> str:
    return next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])


def _line(values: dict[str, str]) -> Iterator[str]:
    """Options first, then arguments behind ``--``, so that none looks like an option."""
    for key, value in values.items():
        if key.startswith("-"):
            yield from (key, value)
    arguments = [value for key, value in values.items() if not key.startswith("-")]
    yield from ("--", *arguments) if arguments else ()


def make(_rng: random.Random, number: int) -> Case:
    """Case ``number``; the seed has no effect."""
    everything = cases()
    return everything[number * 7919 % len(everything)]  # a prime: neighbouring numbers are different commands


def attempt(folder: Path, case: Case) -> str:
    """Run the command, with everything in a reproducible order."""
    _tidy(folder)
    words = [str(folder / word[1:]) if word.startswith("@") else word for word in case.words]
    status = said_once(lambda: cli_main.run(words), (0, 1, 2))
    return {0: ACCEPTED, 1: "failed"}.get(status, REFUSED)


# --- the place -------------------------------------------------------------------------------------------------------


def prepare(folder: Path) -> Path:
    """Files of all kinds, and stand-ins for whatever starts a process or asks a coordinator: they report that they
    would.
    """
    obey_modes()
    place, inside = folder / "place", folder / "a" / "b" / "c"
    place.mkdir()
    inside.mkdir(parents=True)
    os.chdir(inside)  # relative paths that go up from here stay in the folder
    _files(place)
    _checkpoints(place)
    _run_directories(place)
    _stand_ins()
    os.environ["PATH"] = str(folder)
    os.environ.pop("PILOT_RUN_DIR", None)
    return place


def _files(place: Path) -> None:
    from tests.security.fuzz.targets import traces

    for name, kind in {"fifo": "fifo", "fifo.py": "fifo", "folder": "folder", "loop": "loop", "big": "sparse"}.items():
        put(place / name, kind)
    contents = {"secret": "x", "empty": "", "garbage": "\0\x1b[2J" * 999, "file": "print(1)\n", "x.py": "x = 1\n"}
    contents |= {"events": traces.EVENTS, "sacct": traces.SACCT, "pbs": traces.PBS, "swf": traces.SWF}
    contents |= {"trainers": traces.TRAINERS, "curves": traces.CURVES.decode(), "curve": traces.CURVE}
    for name, content in contents.items():
        (place / name).write_text(content)
    (place / "locked").mkdir(mode=0)
    (place / "secret").chmod(0)


def _checkpoints(place: Path) -> None:
    from pilot.checkpoint import store
    from tests.security.fuzz.targets.checkpoints import crafted

    whole = store.write(place / "checkpoints", 1, 1, {"model": {"w": [1.0, 2]}, "b": b"x"}, kept=1).path
    (place / "damaged").mkdir()
    (place / "damaged.h5").write_bytes(crafted(whole.read_bytes(), lambda _: []))
    (place / "damaged" / "g000001-s00000002.h5").write_bytes(whole.read_bytes()[:500])


def _run_directories(place: Path) -> None:
    from pilot.protocol import connection

    for name in ("run", "oddlock", "fifolock", "folderlock"):
        (place / name).mkdir(mode=0o700)
    where = connection.Connection("tcp://127.0.0.1:9", "a" * 64, "t" * 43, "e" * 43, "local-1a2b3c", "0.1.0")
    with suppress(UserError):
        connection.write(place / "run" / "connection.json", where)
    contents: dict[str, dict[str, str | bytes]] = {
        "oddlock": {"coordinator.lock": b"\xff\0nobody\n", "connection.json": "folder"},
        "fifolock": dict.fromkeys(("coordinator.lock", "connection.json", "coordinator.log"), "fifo"),
        "folderlock": {"coordinator.lock": "folder", "connection.json": "device"},
    }
    for name, files in contents.items():
        for file, what in files.items():
            put(place / name / file, what)


def _tidy(place: Path) -> None:
    """Restore the original files."""
    import shutil

    for name in ("new", "out.pt", "out.csv"):
        path = place / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _stand_ins() -> None:
    from pilot.agent import runner, workdir
    from pilot.cli import doctor, up
    from pilot.cli.demo import play
    from pilot.protocol import pool_client
    from pilot.research.sim import sweep

    def would(*_: Any, **__: Any) -> Any:
        raise UserError("a stand-in: this would run")

    def in_this_process(inputs: Any, cases: Any, objective_of: Any, limit_s: float, *_: Any) -> list[Any]:
        return [sweep.run_case(inputs, case, objective_of, limit_s, lambda: False, lambda _: None) for case in cases]

    sweep.run_sweep = in_this_process
    pool_client.request = _request
    up.start = _start
    play._play = would
    runner.run = lambda *_: 0
    doctor.try_pilots = lambda *_: iter(())
    workdir.sweep = lambda: None
    checks = importlib.import_module("pilot.doctor.checks").CHECKS
    for slow in ("MPI", "solvers"):
        checks.pop(slow, None)


def _request(file: Path, verb: str, arguments: dict[str, Any], *_: Any, **__: Any) -> Any:
    """Records what the CLI would send."""
    from pilot.protocol import connection, wire

    connection.load(file)
    wire.encode(wire.Request(verb, arguments))
    raise UserError("a stand-in: it would be sent")


def _start(_root: Path, arguments: list[str], **_: Any) -> dict[str, Any]:
    """A coordinator that exits as soon as it would serve."""
    module = importlib.import_module(arguments[arguments.index("-m") + 1])

    async def serve(*_: Any) -> None:
        return None

    module._serve = serve
    read, write = os.pipe()
    kept = os.dup(2)
    os.dup2(write, 2)
    try:
        status = module.main(arguments[arguments.index("-m") + 2 :])
    except SystemExit as end:
        raise AssertionError(f"the coordinator's options were not taken: {arguments}") from end
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(write)
        said = os.read(read, 1 << 16).decode() if status else ""
        os.close(read)
    if status:
        raise UserError(said.strip().removeprefix("pilot: "))
    return {"coordinator": "local-1", "site": "local", "endpoint": "tcp://127.0.0.1:9"}


def obey_modes() -> None:
    """Root may read everything; without two of its capabilities it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if os.geteuid() == 0 and libc.capget(header, sets) == 0:
        for number in (0, 1):  # effective, permitted
            sets[number] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        assert libc.capset(header, sets) == 0


TARGET = Target("command lines", 1500, 75, attempt, make, prepare, limit_s=30.0)
