"""What fork servers import before a script needs it, and for which scripts preloading does not work."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pilot.agent import fork_server
from pilot.agent.preload import Preloader
from pilot.host.system import become_subreaper, reap
from pilot.submission.installed import VARIABLE, Imports, add_imports, imports_file, read_imports
from pilot.train.script import imported
from tests.integration.test_workers import Bench, bench

SAY = """
import os
import subprocess
import sys
print("loaded:", *sorted(n for n in sys.modules if n.endswith("_one")), flush=True)
print("own:", __import__("fine_one").WHERE, flush=True)
signal.pause()
"""
MODULES = {
    "fine_one": "import os\nWHERE = os.environ.get('FINE_ONE', 'installed')\n",
    "thread_one": "import threading, time\ntime.sleep(0.5)\n"
    "threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n",
    "dying_one": "import os\nos._exit(3)\n",
    "raising_one": "raise SystemExit('no')\n",
    "user_one": "import in_place\n",
    "last_one": "import colorsys\n",
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that fork servers find, and the list of all of them."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "in_place.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{tmp_path / 'own'}:{Path(__file__).parents[2]}")
    add_imports(imports_file(tmp_path / "imports", sys.executable), [*reversed(MODULES)])
    return tmp_path


async def said(it: Bench, script: str = SAY, environment: dict[str, str] | None = None) -> list[str]:
    """What a script finds loaded."""
    it.launch(script, ranks=1, environment=environment)
    log = it.folder / "t" / "logs" / "n.log"
    before = len(log.read_text()) if log.exists() else 0
    await it.until(lambda: "own:" in (log.read_text()[before:] if log.exists() else ""), "the script's word")
    lines = log.read_text()[before:].splitlines()
    it.workers.kill("t")

    def ended() -> bool:
        for pid, status in reap(it.workers.server_pids()):  # left by servers that are gone
            it.workers.reaped(pid, status)
        return bool(it.emitted)

    await it.until(ended, "the worker's end")
    it.emitted.clear()
    return lines


def test_what_can_be_is_loaded_and_what_makes_a_server_unfit_is_left_out(installed: Path) -> None:
    async def play() -> None:
        become_subreaper()
        async with bench(installed) as it:
            it.workers.imports = installed / "imports"
            server = it.workers.warm_up()
            await it.until(lambda: server.importing == "thread_one", "the import that makes it unfit")
            assert await said(it) == ["loaded:", "own: installed"], "the next server forks it, at once"
            lines = ["loaded: fine_one last_one", "own: installed"]
            async with asyncio.timeout(60):
                while await said(it) != lines:
                    pass
            found = read_imports(imports_file(installed / "imports", sys.executable))
            assert sorted(found.unfit) == ["dying_one", "raising_one", "thread_one", "user_one"]

            assert await said(it, environment={"FINE_ONE": "given"}) == ["loaded:", "own: given"]
            setting = f"import os\nos.environ['FINE_ONE'] = 'set'\n{SAY}"
            assert await said(it, setting) == ["loaded:", "own: set"]
            assert await said(it) == lines
            (installed / "colorsys.py").write_text("")
            assert await said(it) == ["loaded:", "own: installed"], "what they import counts, too"
            (installed / "colorsys.py").unlink()
            (installed / "fine_one.py").write_text("WHERE = 'beside'\n")
            assert await said(it) == ["loaded:", "own: beside"]

    asyncio.run(play())


def test_a_server_that_gets_another_request_while_it_imports_reports_its_end(installed: Path) -> None:
    """The one import may bring everything that is left to import: later requests then find it loaded."""
    folder = installed / "site-packages"
    (folder / "slow_one.py").write_text("import fine_one, time\ntime.sleep(0.5)\n")
    add_imports(imports_file(installed / "other", sys.executable), ["fine_one", "slow_one"])

    async def play() -> None:
        async with bench(installed) as it:
            it.workers.imports = installed / "other"
            server = it.workers.warm_up()
            await it.until(lambda: server.importing == "slow_one", "an import that takes its time")
            server.preload(imports_file(installed / "other", sys.executable), [])
            await it.until(lambda: not server.importing, "its word that all is imported")

    asyncio.run(play())


def test_an_end_is_reported_during_an_import(installed: Path) -> None:
    """A worker that was stopped must not hold its node for as long as an import takes on a slow file system."""
    folder = installed / "site-packages"
    (folder / "endless_one.py").write_text("import signal\nwhile True: signal.pause()\n")
    add_imports(imports_file(installed / "other", sys.executable), ["endless_one"])

    async def play() -> None:
        async with bench(installed) as it:
            it.launch("signal.pause()\n", ranks=1)
            await it.until(lambda: bool(list(it.workers.pids())), "the worker")
            server = it.workers.warm_up()
            server.preload(imports_file(installed / "other", sys.executable), [])
            await it.until(lambda: server.importing == "endless_one", "the import")
            it.workers.kill("t")
            assert (await it.end()).status == -9
            assert server.importing == "endless_one"

    asyncio.run(play())


def test_what_every_pilot_imports_has_not_torchs_compiler_in_it() -> None:
    """It takes a second and 70 MB, so it is preloaded for scripts that need it."""
    code = f"import sys\nfor name in {fork_server.BASE}: __import__(name)\nprint('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_only_modules_of_installed_packages_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imported, "_before", frozenset())
    found = imported.new_modules()
    assert {"torch", "numpy", "pytest"} <= set(found)
    assert not [name for name in found if name.startswith(("pilot", "tests", "json", "asyncio"))]


def test_a_file_with_nonsense_has_no_names(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"modules": ["a.b", "import os", "../x", "c", ""], "unfit": ["a"]}')
    assert read_imports(path).wanted() == ["c"]
    path.write_bytes(b"\xff")
    assert read_imports(path) == Imports()


@pytest.mark.parametrize(
    ("text", "sets"),
    [
        ("os.environ['HF_HOME'] = '/x'", "HF_HOME"),
        ('os.environ.setdefault("HF_HOME", "/x")', "HF_HOME"),
        ("os.environ.update(HF_HOME='/x')", "HF_HOME"),
        ("env = os.environ\nenv['CUDA_VISIBLE_DEVICES']='0'", "CUDA_VISIBLE_DEVICES"),
        ("if os.environ['HF_HOME'] == '/x': print(os.environ.get('HF_HOME'))", ""),
        ("os.environ['MINE'] = '/x'", ""),
    ],
)
def test_what_a_script_sets_is_seen(text: str, sets: str) -> None:
    preloader = Preloader()
    preloader.variables = {"HF_HOME"}
    assert preloader._set_by(text) == sets


def test_a_script_under_ddp_tells_at_its_first_step(tmp_path: Path) -> None:
    script = (
        "import torch\nfrom pilot.train.ddp_process import Tally\n"
        "from pilot.train.script import imported\nimported.begin()\n"
        "import click\nTally().begin()\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)\n"
        "for _ in range(2): optimizer.step()\n"
    )
    file = tmp_path / "imports.json"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, VARIABLE: str(file)}, check=True)
    assert "click" in read_imports(file).modules
