"""A script's own error: it ends the trainer with the error's first words, and no node is blamed for it."""

from __future__ import annotations

import pytest

from pilot.core.pool.evidence import HEAD_MAX, headline
from tests.e2e.acts import script
from tests.pools import Pool

WRONG = "raise ValueError('the labels are no numbers')"
LOADS = """
model = torch.nn.Sequential(*(torch.nn.Linear(1, 1) for _ in range(2000)))
model.load_state_dict({})
"""
NODE = "if os.environ['PILOT_TRAINER'] == 't1':\n    open('/nowhere/data')"


def submitted(pool: Pool, before: str, nodes: int) -> str:
    pool.up()
    for _ in range(nodes):
        pool.agent()
    pool.until_pilots(nodes)
    return pool.submit(script(pool, before=before, epochs=2), options=("--max-nodes", "1"))


def test_it_fails_on_the_second_node_and_blames_none(pool: Pool) -> None:
    name = submitted(pool, WRONG, nodes=3)
    assert pool.pilot("wait", name, check=False).returncode == 1
    reason = headline(pool.trainer(name).reason)
    assert reason.startswith("it failed on ") and reason.endswith(
        " in the same line: ValueError: the labels are no numbers"
    )
    told = pool.pilot("events").stdout
    assert (told.count("raised on"), told.count(f"is set aside for {name}: ValueError")) == (2, 1)
    script(pool, epochs=2)
    pool.pilot("resume", name)
    assert pool.pilot("wait", name).returncode == 0
    assert pool.trainer(name).remarks == []
    assert "set aside" not in pool.pilot("nodes").stdout


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (
            LOADS,
            'RuntimeError: Error(s) in loading state_dict for Sequential: Missing key(s) in state_dict: "0.weight"',
        ),
        ("sys.exit('no data\\nleft')", "no data left (exit status 1)"),
        ("raise ExceptionGroup('two', [KeyError('a')])", "ExceptionGroup: two (1 sub-exception): KeyError: 'a'"),
        ("os.kill(os.getpid(), 11)", "its process died 3 times while starting; the last time: killed by SIGSEGV"),
        ("print('no data'); os._exit(3)", "no data (exit status 3)"),
        (
            f"import threading\nthreading.Thread(target=threading.Event().wait).start()\n{WRONG}",
            "ValueError: the labels",
        ),
    ],
)
def test_the_reason_is_one_line_of_limited_length(before: str, why: str, pool: Pool) -> None:
    name = submitted(pool, before, nodes=1)
    assert pool.pilot("wait", name, check=False).returncode == 1
    reason = headline(pool.trainer(name).reason)
    assert why in reason
    assert len(reason) <= HEAD_MAX + len("it failed on : ") + 64
