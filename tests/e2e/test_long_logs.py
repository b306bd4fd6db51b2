"""A script that prints endlessly does not fill the disk, and can go on printing."""

from __future__ import annotations

import subprocess
import sys

from tests.integration.live_pool import until
from tests.pools import Pool

NOISY = """
import time, torch, pilot.train
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = pilot.train.session(model, optimizer)
loader = session.loader(torch.utils.data.TensorDataset(torch.ones(64, 1)), global_batch_size=1)
for epoch in session.epochs(1000):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        print(f"line of {epoch} " + "x" * 200, flush=True)
        time.sleep(0.01)
        session.step(loss)
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
    script = pool.folder / "noisy.py"
    script.write_text(NOISY)
    command = [sys.executable, "-P", "-c", SMALL, "agent", "--connection", str(pool.run_dir / "connection.json")]
    with (pool.folder / "agent0.log").open("wb") as said:
        pool.agents.append(subprocess.Popen(command, stdout=said, stderr=said, env=pool.environment()))
    name = pool.submit(script)
    logs = pool.run_dir / "trainers" / name / "logs"
    pool.until_step(name, 1, nodes=1)
    until(lambda: list(logs.glob("*.log.1")))
    (log,) = logs.glob("*.log")
    step = pool.trainer(name).step
    pool.until_step(name, step + 300, nodes=1)
    assert log.stat().st_size < 60_000, "300 lines of 200 bytes came since"
    assert b"\0" not in log.read_bytes(), "who writes appends"
    assert "x" * 200 in pool.pilot("logs", name).stdout
    pool.pilot("down")
