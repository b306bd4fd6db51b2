"""The number of jobs that a scheduler accepts, learned from its refusals."""

from __future__ import annotations

from pilot.provisioning.submit_limit import SubmitLimit


def test_there_is_no_limit_before_a_refusal() -> None:
    assert SubmitLimit().room(0.0, 500) is None


def test_what_ended_is_replaced_at_once_and_one_more_is_tried_less_and_less_often() -> None:
    limit = SubmitLimit()
    assert limit.refused(0.0, 3, "MaxSubmitJobs", 30.0)
    assert [limit.room(10.0, jobs) for jobs in (4, 3, 2, 0)] == [0, 0, 1, 3]
    assert limit.room(30.0, 3) == 1
    assert not limit.refused(30.0, 3, "MaxSubmitJobs", 30.0)
    assert [limit.room(at_s, 3) for at_s in (60.0, 90.0)] == [0, 1]
    assert limit.sentence() == "with 3 jobs of ours, the scheduler refused another one: MaxSubmitJobs"


def test_a_limit_may_be_raised_and_lowered() -> None:
    limit = SubmitLimit()
    limit.refused(0.0, 3, "no", 30.0)
    limit.accepted(2)
    assert limit.room(0.0, 3) == 0, "it is known to accept three"
    limit.accepted(3)
    assert limit.room(0.0, 4) is None
    assert limit.refused(0.0, 4, "no", 30.0)
    assert limit.refused(1.0, 2, "no", 30.0), "others' jobs count, too"
    assert [limit.room(at_s, 2) for at_s in (1.0, 31.0)] == [0, 1]
