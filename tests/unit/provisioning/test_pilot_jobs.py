"""What is known of our jobs: from the scheduler's answers and the agents' words."""

from __future__ import annotations

import pytest

from pilot.io.site import Site
from pilot.provisioning.pilot_jobs import STEADY_S, JobEnded, JobNoticed, PilotJobs
from pilot.provisioning.scheduler import Ending, JobPhase, JobView, Snapshot

SITE = Site(name="x", scheduler="slurm", grace_s=20, poll_s=2)


def view(job: str, phase: JobPhase, ending: Ending | None = None, **known: float) -> JobView:
    return JobView(job, phase, ending, **known)


def shown(*views: JobView) -> Snapshot:
    return Snapshot({view.job: view for view in views})


def book_with(*jobs: str) -> PilotJobs:
    book = PilotJobs(SITE)
    for job in jobs:
        book.submitted(0, job, 3600)
    return book


def ended(book: PilotJobs, *views: JobView, now_s: float = 10) -> list[JobEnded]:
    return [item for item in book.take(now_s, now_s, shown(*views)) if isinstance(item, JobEnded)]


def test_a_preemption_is_noticed_once_and_is_no_failure() -> None:
    book = book_with("1")
    book.registered(1, "1", 0)
    soon = view("1", JobPhase.RUNNING, preempt_s=8, end_s=28)
    assert book.take(10, 10, shown(soon)) == [JobNoticed("1", 28)]
    assert book.take(12, 12, shown(soon)) == []
    assert book.kept(())[0].leaving
    (end,) = ended(book, view("1", JobPhase.OVER, Ending.COMPLETED, preempt_s=8), now_s=14)
    assert (end.ending, end.failed) == (Ending.PREEMPTED, False)
    assert book.endings == {Ending.PREEMPTED: 1}


def test_the_deadline_of_a_notice_without_an_end_is_the_sites_grace() -> None:
    assert book_with("1").take(10, 10, shown(view("1", JobPhase.RUNNING, preempt_s=8))) == [JobNoticed("1", 30)]


@pytest.mark.parametrize(("phase", "start_s"), [(JobPhase.PENDING, 0.0), (JobPhase.RUNNING, 9.0)])
def test_a_preemption_of_an_earlier_life_is_none_of_this_one(phase: JobPhase, start_s: float) -> None:
    book = book_with("1")
    assert book.take(10, 10, shown(view("1", phase, preempt_s=8, start_s=start_s))) == []
    assert not book.kept(())[0].leaving


def test_an_agents_word_marks_its_job_as_leaving() -> None:
    book = book_with("1")
    book.noticed("1", "signal USR1")
    assert book.kept(())[0].leaving
    (end,) = ended(book, view("1", JobPhase.OVER, Ending.COMPLETED))
    assert end.ending is Ending.PREEMPTED


@pytest.mark.parametrize(
    ("ending", "came_s", "failed"),
    [
        (Ending.FAILED, None, True),
        (Ending.COMPLETED, None, True),
        (Ending.GONE, None, True),
        (Ending.FAILED, 9.0, True),
        (Ending.FAILED, 10 - STEADY_S, False),
        (Ending.COMPLETED, 9.0, False),
        (Ending.GONE, 9.0, False),
        (Ending.PREEMPTED, None, False),
        (Ending.NODE_FAILED, None, False),
        (Ending.CANCELLED, None, False),
        (Ending.WALLTIME, None, False),
    ],
)
def test_what_counts_as_a_failure(ending: Ending, came_s: float | None, failed: bool) -> None:
    book = book_with("1")
    if came_s is not None:
        book.registered(came_s, "1", 0)
    assert [end.failed for end in ended(book, view("1", JobPhase.OVER, ending))] == [failed]


def test_a_job_that_is_not_shown_is_alive_until_it_is_missing_twice() -> None:
    book = book_with("1")
    assert book.take(10, 10, shown()) == []
    assert book.take(12, 12, shown(view("1", JobPhase.PENDING))) == []
    assert book.take(14, 14, shown()) == []
    (end,) = ended(book, now_s=16)
    assert (end.job, end.ending, book.jobs) == ("1", Ending.GONE, {})


def test_an_answer_to_an_earlier_question_says_nothing_of_a_newer_job() -> None:
    book = book_with()
    book.submitted(11, "1", 3600)
    for _ in range(5):
        assert book.take(12, 10, shown()) == []
    assert "1" in book.jobs


def test_a_living_job_of_an_earlier_coordinator_is_taken_over_and_an_old_one_is_not() -> None:
    book = book_with()
    assert book.take(10, 10, shown(view("7", JobPhase.RUNNING), view("8", JobPhase.OVER, Ending.COMPLETED))) == []
    assert list(book.jobs) == ["7"]


@pytest.mark.parametrize("restart", [0, 1])
def test_a_requeued_job_lives_again(restart: int) -> None:
    book = book_with("1")
    book.take(10, 10, shown(view("1", JobPhase.RUNNING, preempt_s=8)))
    book.noticed("1", "signal TERM")
    assert book.take(30, 30, shown(view("1", JobPhase.PENDING, restart=restart))) == []
    (kept,) = book.kept(())
    assert (kept.phase, kept.leaving) == (JobPhase.PENDING, False)


def test_an_agent_of_a_later_life_may_come_before_the_scheduler_shows_it() -> None:
    book = book_with("1")
    book.registered(1, "1", 0)
    book.noticed("1", "signal TERM")
    book.registered(40, "1", 1)
    assert book.take(41, 41, shown(view("1", JobPhase.RUNNING, restart=1))) == []
    assert not book.kept(())[0].leaving


def test_while_another_job_takes_nodes_and_for_two_polls_after_we_yield() -> None:
    book = book_with("1", "2", "3")
    assert not book.yielding(9)
    book.take(10, 10, shown(view("1", JobPhase.RUNNING, preempt_s=8), *(view(job, JobPhase.RUNNING) for job in "23")))
    assert book.yielding(10)
    ended(
        book,
        view("1", JobPhase.OVER, Ending.PREEMPTED),
        view("2", JobPhase.RUNNING),
        view("3", JobPhase.RUNNING),
        now_s=14,
    )
    assert book.yielding(17.9)
    assert not book.yielding(18)
    book.noticed("2", "signal USR1")
    assert book.yielding(30)
    book.cancelled(31, ["2"])
    book.noticed("3", "wall time")
    assert not book.yielding(32)


def test_words_of_jobs_that_are_not_ours_are_ignored() -> None:
    book = book_with()
    book.registered(1, "99", 0)
    book.noticed("99", "signal TERM")
    assert book.jobs == {}


def test_pending_jobs_are_cancelled_first_at_the_end() -> None:
    book = book_with("1", "2", "3")
    book.registered(1, "1", 0)
    assert book.uncancelled() == ["2", "3", "1"]
    book.cancelled(5, ["2"])
    assert book.uncancelled() == ["3", "1"]


def test_a_job_that_outlives_its_cancellation_by_more_than_the_grace_is_overdue() -> None:
    book = book_with("1", "2")
    book.cancelled(5, ["1"])
    assert book.overdue(5 + 22) == []
    assert book.overdue(5 + 22.1) == ["1"]


def test_pilots_work_once_one_that_came_since_the_last_failure_has_stayed() -> None:
    book = book_with("1")
    book.registered(10, "1", 0)
    assert not book.works(10 + STEADY_S - 1, after_s=0)
    assert book.works(10 + STEADY_S, after_s=0)
    assert not book.works(10 + STEADY_S, after_s=20)
