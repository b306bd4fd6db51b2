"""The kernel kills a rank process, then a worker, because the node's memory is used up: the trainer goes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.pools import TRAIN, Pool

GROUPS = Path("/sys/fs/cgroup/memory")
STEP = "        session.step(loss)\n"
EATS = """
        order = Path(f"eat-{os.getpid()}")
        if order.exists():
            count = int(order.read_text())
            order.unlink()
            eaten = [os.urandom(1 << 20) for _ in range(count)]
"""
SCRIPT = f"import os\n{TRAIN.read_text().replace(STEP, STEP + EATS)}"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A control group of processes whose memory can be limited."""
    group = GROUPS / f"pilot-test-{os.getpid()}"
    try:
        group.mkdir()
        assert (group / "memory.oom_control").exists()
    except (OSError, AssertionError) as error:
        pytest.skip(f"memory cannot be limited here: {error}")
    yield group
    group.rmdir()


def kills(group: Path) -> int:
    """How many of its processes the kernel has killed."""
    return int((group / "memory.oom_control").read_text().split("oom_kill ")[-1])


def leave_mb(group: Path, megabytes: int) -> None:
    """Limit the memory of ``group`` to what its processes have now, and that much more."""
    used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    (group / "memory.limit_in_bytes").write_text(str(int(used["total_rss"]) + (megabytes << 20)))


def test_a_rank_and_a_worker_that_the_kernel_kills_for_want_of_memory(memory: Path, pool: Pool) -> None:
    script = pool.folder / "hungry.py"
    script.write_text(SCRIPT)
    pool.up()
    pool.agent()
    into = f'echo $$ > {memory}/cgroup.procs; exec "$@"'
    poor = pool.agent("sh", "-c", into, "sh")
    until = ("--epochs", "100000", "--until", str(pool.folder / "enough"), "--step-s", "0.03")
    name = pool.submit(script, *until, options=(*pool.gains(), "--max-nodes", "2"))
    pool.trains(name, 2)

    (worker,) = pool.workers(poor)
    ranks = [p for p in psutil.Process(poor.pid).children(recursive=True) if "pilot.comm.rank" in p.cmdline()]
    for rank in ranks:
        Path(f"/proc/{rank.pid}/oom_score_adj").write_text("1000")

    def eat(megabytes: int, victims: list[psutil.Process]) -> None:
        leave_mb(memory, 40)
        (pool.folder / f"eat-{worker.pid}").write_text(str(megabytes))
        pool.until("the kernel kills one", lambda _: not all(process.is_running() for process in victims))
        (memory / "memory.limit_in_bytes").write_text("-1")
        assert kills(memory)
        pool.trains(name, 2)

    eat(60, ranks)
    assert pool.workers(poor) == [worker], "it outlives its rank process"
    eat(400, [worker])
    assert "killed by SIGKILL (by hand, or out of memory)" in pool.pilot("events", name).stdout
    done = pool.finish(name)
    assert (done.lost_steps, done.worker_deaths) == (0, 1)
