"""A gradient that differs where a node joins, or after a resume: on one node, that node is set aside; on two, it is the
script, and no node is blamed.
"""

from __future__ import annotations

import re

from pilot.checkpoint import names, store
from pilot.protocol.node_names import shortened
from pilot.protocol.pool_status import PoolStatus
from tests.e2e.acts import script
from tests.pools import Pool

FACTOR = """
def one_of_its_own():
    for number in itertools.count(2):
        try:
            Path(f"number-{number}").touch(exist_ok=False)
        except FileExistsError:
            continue
        return number

factor = float(os.environ.get("FACTOR", "1")) or one_of_its_own()
"""
"""The variable FACTOR of the script's pilot (1 if there is none); if that is 0, a number of each process's own."""
JOINS = r"rank \d computes another gradient of \w+ than rank 0 from the same samples, random numbers and parameters"
RESUMES = (
    r"step \d+ has another gradient of \w+ than before the trainer was resumed, from the same samples and parameters"
)


def agent(pool: Pool, factor: int) -> str:
    """The node of one more pilot on which the script has this factor (0: one of each process's own)."""
    before = {node.node for node in pool.status().pool}
    pool.agent("env", f"FACTOR={factor}")
    came = pool.until("its node", lambda s: len(s.pool) > len(before)).pool
    return next(node.node for node in came if node.node not in before)


def aside(status: PoolStatus) -> list[str]:
    return [text for text in status.trainer("cnn").remarks if "was set aside" in text]


def begins(pool: Pool, *options: str) -> None:
    """Submit it."""
    path = script(pool, "time.sleep(0.02)", before=FACTOR, factor="factor", samples=256)
    pool.submit(path, options=("--name", "cnn", *pool.gains(), *options))
    pool.until_step("cnn", 20, nodes=1)


def test_a_node_that_differs_leaves_and_the_next_one_stays(pool: Pool) -> None:
    pool.up()
    agent(pool, 1)
    begins(pool, "--max-nodes", "2")
    other = agent(pool, 2)
    (text,) = aside(pool.until("it is set aside", lambda s: bool(aside(s))))
    assert text.startswith(f"{other} was set aside: ")
    assert re.search(JOINS, text)
    assert "Possible causes: a value that the script switches" in text
    pool.trains("cnn", 1)
    agent(pool, 1)
    pool.trains("cnn", 2)
    done = pool.finish("cnn")
    assert (done.lost_steps, done.redone_steps) == (0, 0)


def test_a_script_that_differs_on_two_nodes_stays_on_one(pool: Pool) -> None:
    pool.up()
    agent(pool, 0)
    begins(pool)
    first = agent(pool, 0)
    pool.until("the first is set aside", lambda s: bool(aside(s)))
    agent(pool, 0)

    def why(node: str) -> re.Pattern[str]:
        return re.compile(rf"[Ii]t stays on one node: what it computes on {re.escape(node)} and \S+ differs: .*{JOINS}")

    pool.until("it stays", lambda s: any(why(first).match(text) for text in s.trainer("cnn").remarks))
    assert why(shortened(first)).search(" ".join(pool.pilot("explain", "cnn").stdout.split()))
    assert "set aside" not in pool.pilot("nodes").stdout
    agent(pool, 0)
    pool.trains("cnn", 1)
    done = pool.finish("cnn")
    assert (done.lost_steps, done.redone_steps) == (0, 0)


def killed(pool: Pool, factor: int) -> None:
    """It trains on a node, which is lost when the newest checkpoint has the step that follows it beside it."""
    agent(pool, factor)
    begins(pool, "--max-nodes", "1")
    checkpoints = (pool.run_dir / "trainers" / "cnn").resolve() / "checkpoints"

    def ages() -> set[names.Age]:
        return {entry.age for entry in names.next_steps(checkpoints)}

    pool.until("a step after a checkpoint", lambda _: bool(ages()))
    pool.kill_tree(pool.agents[0])
    for entry in store.listing(checkpoints):
        if entry.age not in ages():  # the node was lost just then
            entry.path.unlink()
    pool.until("it has no node", lambda s: not s.pool)


def test_a_trainer_that_resumes_otherwise_on_one_node_is_resumed_on_another(pool: Pool) -> None:
    pool.up()
    killed(pool, 1)
    other = agent(pool, 2)
    agent(pool, 1)
    (text,) = aside(pool.until("it is set aside", lambda s: bool(aside(s))))
    pool.trains("cnn", 1)
    assert text.startswith(f"{other} was set aside: ")
    assert re.search(RESUMES, text)
    assert "Possible causes: a value that the script switches" in text
    pool.finish("cnn")


def test_a_script_that_resumes_otherwise_on_two_nodes_stops_until_that_is_accepted(pool: Pool) -> None:
    pool.up()
    killed(pool, 0)
    agent(pool, 0)
    agent(pool, 0)
    ended = pool.until("it has failed", lambda s: s.trainer("cnn").phase == "failed").trainer("cnn")
    assert "it failed on 2 nodes and worked on none since" in ended.reason
    assert re.search(RESUMES, ended.reason)
    pool.pilot("resume", "cnn", "--accept-changes", "gradients")
    pool.trains("cnn", 1)
    assert any(re.search(rf"{RESUMES} \(accepted\)", text) for text in pool.trainer("cnn").remarks)
    pool.finish("cnn")
