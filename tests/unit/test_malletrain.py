"""The experiments of docs/research/malletrain.md run, with the results that the document states."""

from __future__ import annotations

import re
from statistics import median

from click.testing import CliRunner

from benchmarks.malletrain import main
from benchmarks.nas import cells, found_s


def test_a_profile_downwards_scales_up_once() -> None:
    output = CliRunner().invoke(main, ["sequence"]).output
    counts = dict(re.findall(r"^ *(\w+): ([0-9 ]+?)   scale-ups", output, re.MULTILINE))
    assert counts == {"inverse": "5 4 3 2 1 5", "auto": "5", "never": "5"}


def test_halving_with_nodes_planned_finds_a_good_cell_sooner_than_trials_that_all_train_to_the_end() -> None:
    every = cells()
    assert (len(every), sum(cell.near for cell in every)) == (15625, 69)
    joint, first_come = (
        median(found_s(every, policy, 0.7, 16, seed) for seed in range(3))
        for policy in (("joint", 0), ("first come", 1))
    )
    assert joint < first_come
