"""Scripts that use the session's numbers and ``session.state``, where a variable of their own would not do: they train
as one undisturbed process does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import TensorDataset

from tests.equivalence.loops import BATCH, DATA, GROWS_AND_SHRINKS, Loop, X, Y, mlp, session, sgd
from tests.equivalence.rows import SAMPLES, Result, assert_agree, on_ranks
from tests.equivalence.topics.several import Several


def by_labels_of_its_own() -> Result:
    """Of the model at an epoch's beginning, which only ``session.state`` still has in the middle of it."""
    loop = Loop(data=TensorDataset(X, torch.arange(SAMPLES)))
    state = loop.session.state

    def first(_epoch: int) -> None:
        with torch.no_grad():
            state["labels"] = loop.model(X) + Y

    return loop.train(first=first, body=lambda x, index: loop.step(x, state["labels"][index])).tensors()


def by_samples() -> Result:
    loop = Loop()

    def body(*batch: torch.Tensor) -> None:
        for group in loop.optimizer.param_groups:
            group["lr"] = 0.05 * min(1, (1 + loop.session.samples) / 40)
        loop.step(*batch, factor=min(1.0, 0.1 + loop.session.samples / 30))

    return loop.train(body=body).tensors()


@pytest.mark.parametrize("script", [by_labels_of_its_own, by_samples])
def test_equal_to_one_process(script: Callable[[], Result]) -> None:
    assert_agree(on_ranks(script, 1, GROWS_AND_SHRINKS), script())


def test_samples_counts_those_of_all_ranks_in_the_steps() -> None:
    """Also between the steps of several optimizers, and in a step that runs again."""

    def script() -> list[int]:
        its, counts = Several(session, {"a": sgd, "b": sgd}, a=mlp, b=mlp), []
        ours = its.session

        def excess() -> int:
            return ours.samples - SAMPLES * (ours.steps // 6) - BATCH * (ours.steps % 6)

        for x, _ in its.batches():
            counts.append(excess())
            its.step_all(x)
            counts.append(excess())
        return [*counts, ours.samples - 2 * SAMPLES]

    assert set(script()) == {0}
    for counts in on_ranks(script, 1, GROWS_AND_SHRINKS):
        assert set(counts) == {0}


@pytest.mark.parametrize(("nodes", "warnings"), [(1, 0), (2, 2)])
def test_an_epoch_without_a_full_step_is_warned_of(
    nodes: int, warnings: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a batch for each node there may be one on one node, and none on two."""
    options = {"batch_size": len(DATA) * 2 // 3, "drop_last": True}
    on_ranks(lambda: Loop(loader=options, lr_rule="linear").train(), nodes, [])
    assert capsys.readouterr().err.count("has no step, so nothing is trained in it") == warnings
