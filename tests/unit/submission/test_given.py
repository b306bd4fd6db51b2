"""What can be given to a script: checked where it is submitted."""

from __future__ import annotations

from typing import Any

import pytest

from pilot.core.errors import UserError
from pilot.core.ids import TrainerId, TrainerUid
from pilot.submission.study_definition import Range, StudyDefinition
from pilot.submission.submission import GIVEN_MAX, LaunchSpec, Submission

T, UID = TrainerId("t"), TrainerUid("0" * 32)


def launch(*arguments: str, **environment: str) -> LaunchSpec:
    return LaunchSpec("/s.py", "0" * 64, list(arguments), "/", "/usr/bin/python3", environment)


def study(given: LaunchSpec, **parameters: Range) -> StudyDefinition:
    how: dict[str, Any] = {"metric": "loss", "maximise": False, "rungs": (1,), "trials": 1}
    return StudyDefinition(name="s", launch=given, parameters=parameters, **how)


def test_the_limit_is_in_bytes_as_linux_counts_them() -> None:
    for given in ("x" * (GIVEN_MAX - 1), "ä" * (GIVEN_MAX // 2 - 1)):
        assert Submission(launch=launch(given)).spec(T, UID).trainer == T
        with pytest.raises(UserError, match=r"have 131,07[34] bytes, and at most 131,072 can be given to it: put"):
            Submission(launch=launch(f"{given}xy")).spec(T, UID)


@pytest.mark.parametrize(
    "given", [launch(*"x" * GIVEN_MAX), launch(A="x" * GIVEN_MAX), launch("x" * 99_999, A="y" * 99_999)]
)
def test_all_that_is_given_counts_together(given: LaunchSpec) -> None:
    with pytest.raises(UserError, match="at most 131,072"):
        Submission(launch=given).spec(T, UID)


def test_the_parameters_of_a_trial_count_too() -> None:
    choices = Range.read(f"choice:a,{'x' * 70_000}")
    assert study(launch("y" * 50_000), a=choices, b=Range.read("log:1e-4:1e-1")).spec(UID, 0.0).trials == 1
    with pytest.raises(UserError, match="at most 131,072"):
        study(launch("y" * 50_000), a=choices, b=choices).spec(UID, 0.0)


@pytest.mark.parametrize("given", [launch("a\0b"), launch(A="\0"), launch(**{"": "1"}), launch(**{"A=B": "1"})])
def test_what_no_process_can_get_is_refused(given: LaunchSpec) -> None:
    with pytest.raises(UserError, match="zero byte"):
        Submission(launch=given).spec(T, UID)
