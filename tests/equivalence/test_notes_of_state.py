"""What a script is told of what it keeps in ``session.state``; see :mod:`tests.equivalence.test_notes`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.equivalence.test_notes import Pool, said


@pytest.mark.parametrize(
    ("made", "change"),
    [
        (lambda: {"count": 0}, lambda kept: kept.update(count=kept["count"] + 1)),
        (list, lambda kept: kept.append(1.0)),
        (lambda: [torch.zeros(2)], lambda kept: kept[0].add_(1)),
        (lambda: torch.zeros(2), lambda kept: kept.add_(1)),
        (lambda: np.zeros(2), lambda kept: kept.__iadd__(1)),
    ],
)
@pytest.mark.parametrize("where", ["kept", "pool.kept"])
def test_a_value_of_the_state_that_is_changed_through_a_variable(
    made: Callable[[], Any], change: Callable[[Any], Any], where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        pool = Pool()
        if where == "kept":
            kept = ours.state.setdefault("its", made())
        else:
            pool.kept = ours.state.setdefault("its", made())
        for _ in ours.epochs(2):
            for x, y in loader:
                step(x, y)
                change(kept if where == "kept" else pool.kept)

    (line,) = said(script, capsys)
    assert f"changes session.state['its'] by another name, which it has from before the loop ({where})" in line


def test_values_of_the_state_that_are_changed_there_are_not_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    def script(ours: Any, loader: Any, step: Any) -> None:
        state, fixed = ours.state, ours.state.setdefault("fixed", [1.0])
        state["losses"], best = [], None
        for epoch in ours.epochs(2):
            for x, y in loader:
                step(x, y, sum(fixed))
                state["losses"].append(epoch)
            best = state["best"] = [torch.ones(epoch + 1)]
        assert best

    assert said(script, capsys) == []
