"""A script that prints endlessly does not fill the disk, and can go on printing."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.acts import script
from tests.integration.live_pool import until
from tests.pools import Pool

NOISY = """
print(f"line of {epoch} " + "x" * 200, flush=True)
time.sleep(0.01)
"""

SMALL = """
from pilot.agent import runner
from pilot.cli.main import main
from pilot.rundir import log_marks
assert log_marks.LOG_BYTES == 64 << 20
log_marks.LOG_BYTES, runner.INSPECT_EVERY_TICKS = 20_000, 1
main()
"""


def test_a_log_is_rotated_under_a_script_that_goes_on_writing(pool: Pool) -> None:
    pool.up()
    command = [sys.executable, "-P", "-c", SMALL, "agent", "--connection", str(pool.run_dir / "connection.json")]
    with (pool.folder / "agent0.log").open("wb") as log:
        pool.agents.append(subprocess.Popen(command, stdout=log, stderr=log, env=pool.environment()))
    name = pool.submit(script(pool, NOISY))
    logs = pool.run_dir / "trainers" / name / "logs"
    pool.until_step(name, 1, nodes=1)
    until(lambda: list(logs.glob("*.log.1")))
    (printed,) = logs.glob("*.log")
    step = pool.trainer(name).step
    pool.until_step(name, step + 300, nodes=1)
    assert printed.stat().st_size < 60_000, "300 lines of 200 bytes came since"
    assert b"\0" not in printed.read_bytes(), "who writes appends"
    assert "x" * 200 in pool.pilot("logs", name).stdout
    pool.pilot("down")
