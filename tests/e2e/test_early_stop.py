"""A script that evaluates on all its nodes and leaves its loop by ``break``."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.pools import Pool

LOOPS = Path(__file__).parents[1] / "integration" / "loops.py"
STEPS_PER_EPOCH = 16


def test_a_script_that_leaves_its_loop_by_break_has_finished(pool: Pool, tmp_path: Path) -> None:
    pool.up()
    for _ in range(2):
        pool.agent()
    saved = tmp_path / "saved"
    name = pool.submit(LOOPS, "--epochs", "50", "--break-after", "1", "--stream", "--save", str(saved))
    assert pool.pilot("wait", name).stdout == f"{name} finished\n"
    trainer = pool.trainer(name)
    assert (trainer.phase, trainer.step) == ("finished", 2 * STEPS_PER_EPOCH)
    history = torch.load(saved.with_suffix(".0"))["state"]["history"]
    assert [step for step, *_ in history] == [STEPS_PER_EPOCH]
