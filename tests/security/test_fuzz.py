"""A slice of ``make fuzz``: every target, always the same inputs."""

from __future__ import annotations

import pytest

from tests.security.fuzz.run import evenly, try_all
from tests.security.fuzz.target import Target
from tests.security.fuzz.targets import TARGETS


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name.replace(" ", "-"))
def test_hostile_input_is_taken_or_refused_in_one_line(target: Target) -> None:
    result = try_all(target, 1, evenly(target, target.few))
    assert result.failures == []
    assert len(result.counts) > 1, "nothing was refused, or nothing was taken: the inputs test nothing"
