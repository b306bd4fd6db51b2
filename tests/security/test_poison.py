"""What would kill a coordinator, and every restart of it: refused on arrival, or kept out of the journal."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilot.core.curves.curve import RATES, Curve
from pilot.core.curves.measured import Measured
from pilot.core.errors import UserError
from pilot.core.ids import TrainerId
from pilot.core.trainer.spec import TrainerSpec
from pilot.protocol.pool_client import request
from pilot.rundir import segments
from tests.integration.live_pool import DEADLINE_S, LAUNCH, Pool, pool, until
from tests.resealed import line_of

BAD = [float("nan"), float("inf"), float("-inf"), -1.0, 1e300]


def journal(live: Pool) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (live.run_dir / "journal.jsonl").read_text().splitlines()]


def submitted(live: Pool) -> int:
    return sum(entry.get("event", {}).get("type") == "TrainerSubmitted" for entry in journal(live))


@pytest.mark.parametrize("value", BAD, ids=str)
@pytest.mark.parametrize("field", ["rescale_up_s", "rescale_down_s", "priority", "min_nodes", "max_nodes", "curve"])
def test_what_the_core_would_refuse_is_refused_and_not_journaled(live: Pool, field: str, value: float) -> None:
    before = submitted(live)
    given = [(1, value)] if field == "curve" else value
    reply = request(live.file, "submit", {"launch": msgspec.to_builtins(LAUNCH), field: given}, DEADLINE_S)
    assert (reply.exit_status, reply.error.count("\n")) == (2, 0)
    assert reply.error
    assert submitted(live) == before
    assert not live.client.status().draining


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
@pytest.mark.parametrize("option", ["--rescale-up-s", "--rescale-down-s", "--priority"])
def test_the_same_by_hand(live: Pool, tmp_path: Path, option: str, value: str) -> None:
    (tmp_path / "s.py").write_text("")
    command = [sys.executable, "-P", "-m", "pilot", "submit", "--run-dir", str(live.run_dir), option, value]
    done = subprocess.run([*command, str(tmp_path / "s.py")], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert not live.client.status().draining


@pytest.mark.parametrize("rate", [5e-324, 1e-300, 1e300, float("nan"), float("inf"), -1.0])
def test_no_measured_rate_makes_a_curve_that_cannot_be_reckoned_with(rate: float) -> None:
    measured = Measured(TrainerSpec(TrainerId("a")))
    before = measured.curve
    measured.rate(0.0, 2, rate)
    assert measured.curve == before


def test_within_the_rates_nothing_overflows() -> None:
    for low in RATES:
        for high in RATES:
            curve = Curve.of([(1, low), (1e6, high)])
            assert all(0 <= curve.at(nodes) < float("inf") for nodes in (0.5, 1, 2, 1e3, 1e6, 1e9))
            assert 0 < curve.scaled(1 / curve.single_node_rate()).at(1e6) < float("inf")


@pytest.mark.parametrize("rate", [5e-324, 1e-10, 1e16, 1e300])
def test_a_curve_of_such_rates_is_no_specification(rate: float) -> None:
    with pytest.raises(UserError, match="a rate must be"):
        TrainerSpec(TrainerId("a"), curve=Curve.of([(1, rate)]))


def spec(name: str, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"trainer": name, "min_nodes": 1, "max_nodes": 64, "curve": None, "fixed_curve": False}
    fields |= {"rescale_up_s": 20.0, "rescale_down_s": 10.0, "priority": 1.0, "objective_curve": None}
    return {"type": "TrainerSubmitted", "spec": fields | changes}


@pytest.mark.parametrize(
    "poison",
    [
        {"event": spec("x", rescale_up_s=float("nan")), "commands": []},
        {"event": spec("x", priority=float("inf")), "commands": []},
        {"event": spec("good"), "commands": []},
        {"event": {"type": "PlanReady", "plan_id": "first"}, "commands": []},
        {"event": {"type": "Unheard"}, "commands": []},
        {"event": {"type": "DrainRequested"}, "commands": [{"type": "Nothing"}]},
        {"neither": 1},
        [],
    ],
    ids=["nan", "inf", "twice", "mistyped", "unknown", "command", "neither", "list"],
)
def test_a_restart_leaves_it_out_says_so_and_keeps_the_file(tmp_path: Path, poison: Any) -> None:
    with pool(tmp_path) as live:
        good = live.submit(name="good")
        file = live.run_dir / "journal.jsonl"
        until(lambda: '"PlanReady"' in file.read_text() or submitted(live))
        live.kill(signal.SIGKILL)
        last = journal(live)[-1]
        if isinstance(poison, dict):
            poison = {"seq": last["seq"] + 1, "now_s": last["now_s"], **poison}
        with file.open("a") as tail:
            tail.write(line_of(poison).decode() if isinstance(poison, dict) else json.dumps(poison) + "\n")
        found = file.read_bytes()
        live.up()
        assert [row.trainer for row in live.client.trainers().trainers] == [good]
        (told,) = live.client.status().damage
        assert "cannot be applied" in told or " is missing: " in told
        assert told in live.log()
        assert told in live.client.status().remarks
        until(lambda: segments.closed(file, 10**6))
        assert gzip.decompress(segments.closed(file, 10**6)[0].read_bytes()).startswith(found)
        after = live.submit(name="after")
        live.kill(signal.SIGKILL)
        live.up()
        assert [row.trainer for row in live.client.trainers().trainers] == [good, after]
        assert live.down() == 0
