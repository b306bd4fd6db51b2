"""Commands that take the names of several trainers: one that fails does not stop the others."""

from __future__ import annotations

import json

import pytest

from pilot.cli.main import run
from tests.integration.live_pool import Pool


def test_each_has_its_line_and_the_exit_status_is_the_worst(live: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        live.submit(name=name, min_nodes=50)

    def said(*words: str) -> tuple[int, list[str], list[str]]:
        status = run([*words, "--run-dir", str(live.run_dir)])
        shown = capsys.readouterr()
        return status, shown.out.splitlines(), [line.partition(";")[0] for line in shown.err.splitlines()]

    unknown = "pilot: no trainer named 'x'"
    assert said("hold", "x", "a", "b", "a") == (
        2,
        ["a is held; pilot release a continues it", "b is held; pilot release b continues it"],
        [unknown],
    )
    assert said("release", "a", "b") == (0, ["a is released; it is queued", "b is released; it is queued"], [])
    status, out, err = said("cancel", "a", "x", "--json")
    assert (status, json.loads("".join(out))["phase"], err) == (2, "cancelled", [unknown])
    assert said("cancel", "a", "b") == (2, ["cancelled b"], ["pilot: trainer a has already ended (cancelled)"])
    assert said("wait", "a", "x", "b") == (2, ["a cancelled", "b cancelled"], [unknown])
    assert said("wait", "a", "b") == (1, ["a cancelled", "b cancelled"], [])
    assert said("wait", "x") == (2, [], [unknown])
    status, out, err = said("resume", "x", "b", "y")
    assert (status, len(out), len(err)) == (2, 0, 3), "what was submitted here is no script"


def test_the_name_of_a_host_clears_its_node(live: Pool, capsys: pytest.CaptureFixture[str]) -> None:
    live.running(2)
    first, _ = live.nodes()
    host = first.partition(".")[0]
    status = run(["nodes", "--clear", host, "--run-dir", str(live.run_dir)])
    assert (status, capsys.readouterr().out) == (0, f"cleared {first}\n")
