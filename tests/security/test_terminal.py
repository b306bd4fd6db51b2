"""What commands print of hostile files and names: no character of these reaches a terminal as a control."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilot.checkpoint import store
from pilot.host.printable import printable
from pilot.research.traces.changes import write_changes
from pilot.research.traces.synthesis import PUBLISHED, draw
from tests.security import hostile_pool
from tests.security.fuzz.targets.checkpoints import crafted

ROOT = Path(__file__).parents[2]
EVIL = "\x1b]0;owned\x07\x1b[2J\x1b[35;5m\x9b31m\u202etxt [/red] :bomb:"
NOT_TEXT = "\udcff.h5"
"""A file's name that is not valid UTF-8."""

FILES = ("checkpoints", "damaged.h5", NOT_TEXT)
IN_FILE_NAMES = EVIL.replace("/", "|")
RICH = re.compile(r"\x1b\[[\d;]*m")
"""The colours of our own tables."""

SITE = f"""from pilot.site.site import Site
site = Site(name="evil", scheduler="local", launcher="simple", description={EVIL!r})
"""

RUN_ALL = """
import json, sys
from pilot.cli import main
commands = json.loads(sys.argv[1])
def run_all(_):
    for number, words in enumerate(commands):
        print(f"@@{number}", flush=True)
        run_one(words)
run_one, main.run = main.run, run_all
main.main()
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind, and a pool."""
    folder = tmp_path_factory.mktemp("evil") / IN_FILE_NAMES
    folder.mkdir()
    hostile_pool.build(folder / "pool", [EVIL, f"{EVIL} 2"])
    state = {"model": {EVIL: [1.0], "w": {EVIL: EVIL}}, EVIL: EVIL}
    whole = store.write(folder / "checkpoints", 1, 1, state, kept=1).path.read_bytes()
    (folder / "damaged.h5").write_bytes(crafted(whole, lambda about: {**about, EVIL: EVIL}))
    (folder / NOT_TEXT).write_bytes(whole)
    write_changes(folder / f"{IN_FILE_NAMES}.csv", draw(PUBLISHED["summit"].on(50), 3600.0, seed=3))
    sites = folder / "config" / "pilot" / "sites"
    sites.mkdir(parents=True)
    (sites / "evil.py").write_text(SITE)
    (sites / "wrong.py").write_text(SITE.replace("scheduler=", "other="))
    return folder


def commands(place: Path) -> Iterator[list[str]]:
    """Commands that print the contents or the names of files, most of them also with ``--json``."""
    site = place / "config" / "pilot" / "sites"
    of_files = [
        *(["checkpoint", name, str(place / file)] for name in ("show", "ls", "verify") for file in FILES),
        *(["sites", "check", str(site / f"{name}.py")] for name in ("evil", "wrong")),
        ["trace", "stats", str(place / f"{IN_FILE_NAMES}.csv")],
        ["sites"],
    ]
    run_dir = ["--run-dir", str(place / "pool")]
    of_pool = [["status"], ["ls"], ["nodes"], ["events"], ["explain", f"trainer {EVIL}"], ["status", f"trainer {EVIL}"]]
    of_study = [["study", name, hostile_pool.STUDY] for name in ("status", "trials", "best")]
    for words in (*of_files, *([*words, *run_dir] for words in (*of_pool, *of_study))):
        yield from (words, [*words, "--json"])
    yield ["ls", "--all", *run_dir]
    yield from (["study", "export", hostile_pool.STUDY, *more, *run_dir] for more in ([], ["--csv"]))
    yield ["checkpoint", "export", str(place / "checkpoints"), str(place / "out.pt")]


def said(place: Path, *, terminal: bool, **environment: str) -> list[tuple[list[str], str]]:
    """Each command with what it said, on both streams if it is a ``terminal``."""
    words = list(commands(place))
    environment |= {"XDG_CONFIG_HOME": str(place / "config"), "XDG_STATE_HOME": str(place / "state")}
    command = [sys.executable, "-c", RUN_ALL, json.dumps(words)]
    how: dict[str, Any] = {"env": {**os.environ, **environment}}
    if not terminal:
        text = subprocess.run(command, stdout=subprocess.PIPE, check=True, **how).stdout.decode()
    else:
        ours, theirs = pty.openpty()
        with subprocess.Popen(command, stdout=theirs, stderr=theirs, **how):
            os.close(theirs)
            text = b"".join(iter(lambda: _read(ours), b"")).decode().replace("\r\n", "\n")
        os.close(ours)
    parts = re.split(r"^@@\d+\n", text, flags=re.MULTILINE)[1:]
    return list(zip(words, parts, strict=True))


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def test_on_a_terminal_nothing_is_a_control(place: Path) -> None:
    for words, text in said(place, terminal=True, TERM="xterm-256color", COLUMNS="200"):
        assert "internal error" not in text and "Traceback (" not in text, words
        assert "\x1b[35;5m" not in text, words
        plain = RICH.sub("", text)
        assert plain == printable(plain), words


def test_in_a_pipe_json_stays_what_it_is(place: Path) -> None:
    """Also where the locale knows only ASCII, in which click would write past the stream."""
    for words, text in said(place, terminal=False, PYTHONIOENCODING="ascii"):
        assert text == printable(text), words
        if "--json" in words and "events" not in words and text:
            json.loads(text)
        if words == ["checkpoint", "show", str(place / "checkpoints"), "--json"]:
            assert json.loads(text)["values"][EVIL] == EVIL
        if "--csv" in words:
            assert ",'=1+1" in text and not re.search("(^|,)=", text, re.MULTILINE), "a spreadsheet would calculate it"


def test_all_tables_are_printed_on_the_console_that_escapes() -> None:
    makers = [path for path in (ROOT / "pilot").rglob("*.py") if re.search(r"\bConsole\(", path.read_text())]
    assert makers == []
