"""What a script does after its loop: rank 0 runs it to its end; if it cannot, the trainer's ending says so."""

from __future__ import annotations

from pathlib import Path

from pilot.core.trainer.actions import DRAIN_LEAST_S
from pilot.history.words import duration
from tests.e2e.acts import script
from tests.pools import Pool

AFTER = """
if session.rank == 0:
    folder = Path(sys.argv[1])
    (folder / "after").touch()
    try:
        while not (folder / "go").exists():
            time.sleep(0.1)
        (folder / "saved").touch()
    finally:
        (folder / "tidied").touch()
    if sys.argv[2:] == ["5"]:
        print("accuracy 0.9")
        sys.exit(5)
    if sys.argv[2:]:
        raise ValueError(sys.argv[2])
"""


def submit(pool: Pool, *arguments: str, nodes: int = 1, after_loop_s: str = "600") -> str:
    """A trainer on ``nodes`` nodes of a pool that comes up for it."""
    pool.up()
    for _ in range(nodes):
        pool.agent()
    pool.until_pilots(nodes)
    options = ("--after-loop-s", after_loop_s)
    return pool.submit(script(pool, after=AFTER, epochs=2, samples=32), str(pool.folder), *arguments, options=options)


def ended(pool: Pool, name: str) -> str:
    pool.pilot("wait", name)
    trainer = pool.trainer(name)
    assert trainer.phase == "finished"
    return trainer.reason


def test_it_comes_to_its_end_while_other_nodes_are_free(pool: Pool) -> None:
    name = submit(pool, "no more room", nodes=2)
    pool.until("one node is free", lambda s: (pool.folder / "after").exists() and len(s.trainer(name).nodes) <= 1)
    assert pool.trainer(name).phase == "closing"
    (pool.folder / "go").touch()
    assert ended(pool, name) == "after step 4; its script failed after the loop: ValueError: no more room"
    assert (pool.folder / "saved").exists()


def test_another_trainer_does_not_wait_for_the_busy_node(pool: Pool) -> None:
    first = submit(pool, nodes=2)
    pool.until("its loop is over", lambda _: (pool.folder / "after").exists())
    second = pool.submit(script(pool, epochs=2, samples=32), options=("--max-nodes", "2"))
    wide = pool.submit(script(pool, epochs=2, samples=32), options=("--min-nodes", "2"))
    assert ended(pool, second) == "after step 4"
    assert pool.trainer(first).phase == "closing"
    told = f" is free once {first} has closed"
    pool.until("the third waits for the busy node", lambda s: told in s.trainer(wide).waits)
    (pool.folder / "go").touch()
    assert (ended(pool, first), ended(pool, wide)) == ("after step 4", "after step 4")


THREAD = """
import threading
if session.rank == 0:
    gone = lambda: [time.sleep(0.1) for _ in iter(Path("go").exists, True)]
    threading.Thread(target=gone, name="uploader").start()
"""


def test_what_keeps_a_process_after_its_script_is_named(pool: Pool) -> None:
    pool.up()
    pool.agent()
    name = pool.submit(script(pool, after=THREAD, epochs=2, samples=32))
    told = "its script has ended, but not its thread uploader on "
    waits = pool.until("it is named", lambda s: told in s.trainer(name).waits).trainer(name).waits
    assert "for up to 10m00s" in waits and f"pilot cancel {name} ends it" in waits
    events = pool.pilot("events").stdout
    assert told in events and "its loop is over; the code after it may run on " in events
    (pool.folder / "go").touch()
    assert ended(pool, name) == "after step 4"
    assert pool.trainer(name).waits == ""


def test_its_exit_status_is_reported_if_its_last_line_is_no_error(pool: Pool) -> None:
    (pool.folder / "go").touch()
    name = submit(pool, "5")
    assert ended(pool, name) == "after step 4; its script failed after the loop: accuracy 0.9 (exit status 5)"


def test_where_it_is_cut_the_ending_says_so(pool: Pool, tmp_path: Path) -> None:
    name = submit(pool, after_loop_s="1")
    assert "stopped after 1 s (--after-loop-s)" in ended(pool, name)
    assert not (tmp_path / "saved").exists()


def test_a_cancel_does_not_wait_for_its_end(pool: Pool, tmp_path: Path) -> None:
    name = submit(pool)
    pool.until("its loop is over", lambda _: (tmp_path / "after").exists())
    pool.pilot("cancel", name)
    assert ended(pool, name) == "after step 4; it was cancelled before its script had ended"
    assert (tmp_path / "tidied").exists()
    assert not (tmp_path / "saved").exists()


def test_a_pool_that_is_shut_down_waits_for_it_for_the_grace_and_says_so(pool: Pool, tmp_path: Path) -> None:
    name = submit(pool)
    pool.until("its loop is over", lambda _: (tmp_path / "after").exists())
    output = pool.pilot("down").stdout
    waits = f"waiting for {name} (its script runs on after the loop on "
    assert f", for up to {duration(DRAIN_LEAST_S)}; pilot cancel {name} ends it)" in output.partition(waits)[2]
    trainer = pool.trainer(name)
    assert trainer.phase == "finished"
    cut = f"its code after the training loop was stopped after {DRAIN_LEAST_S:g} s (the pool was shut down)"
    assert trainer.reason == f"after step 4; {cut}"
    assert not (tmp_path / "saved").exists()
