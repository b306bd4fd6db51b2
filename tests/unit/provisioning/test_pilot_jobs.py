"""The records of our jobs, from the scheduler's answers and the agents' messages."""

from __future__ import annotations

import pytest

from pilot.provisioning.job_record import HELD_S, SOON_POLLS, STARTING_S, STEADY_S
from pilot.provisioning.pilot_jobs import (
    ENDS,
    EndKnown,
    JobEnded,
    JobEvent,
    JobNoticed,
    JobSuspended,
    PilotJobs,
)
from pilot.provisioning.scheduler import JobEnd, JobPhase, JobView, QueueSnapshot
from pilot.site.site import Site

SITE = Site(name="x", scheduler="slurm", grace_s=20, poll_s=2)


def view(job: str, phase: JobPhase, ending: JobEnd | None = None, **known: float) -> JobView:
    return JobView(job, phase, ending, **known)


def shown(*views: JobView) -> QueueSnapshot:
    return QueueSnapshot({view.job: view for view in views})


def book_with(*jobs: str, joined: bool = False) -> PilotJobs:
    """Jobs that were submitted at 0; with agents that ``joined`` at 1."""
    book = PilotJobs(SITE)
    for job in jobs:
        book.submitted(0, job, 3600)
        if joined:
            book.registered(1, job, 0)
    return book


def events(book: PilotJobs, now_s: float, asked_s: float, snapshot: QueueSnapshot) -> list[JobEvent]:
    """The changes, without the known ends."""
    return [item for item in book.update(now_s, asked_s, snapshot) if not isinstance(item, EndKnown)]


def ended(book: PilotJobs, *views: JobView, now_s: float = 10) -> list[JobEnded]:
    """The jobs that end when the scheduler shows ``views`` and agrees to cancel every doubtful job."""
    ends = [item for item in book.update(now_s, now_s, shown(*views)) if isinstance(item, JobEnded)]
    return ends + book.cancelled(now_s, book.to_cancel(now_s))


def leaving(book: PilotJobs, now_s: float) -> list[bool]:
    return [job.leaving for job in book.scaling_jobs(now_s)]


def test_a_preemption_is_noticed_once_and_is_no_failure() -> None:
    book = book_with("1", joined=True)
    soon = view("1", JobPhase.RUNNING, preempt_s=8, end_s=28)
    assert events(book, 10, 10, shown(soon)) == [JobNoticed("1", 28)]
    assert events(book, 12, 12, shown(soon)) == []
    assert leaving(book, 12) == [True]
    assert events(book_with("1"), 10, 10, shown(view("1", JobPhase.RUNNING, preempt_s=8))) == [JobNoticed("1", None)]
    (end,) = ended(book, view("1", JobPhase.OVER, JobEnd.COMPLETED, preempt_s=8), now_s=14)
    assert (end.ending, end.failed) == (JobEnd.PREEMPTED, None)
    assert book.endings == {JobEnd.PREEMPTED: 1}


def test_the_end_of_a_job_is_reported_again_only_if_it_moves() -> None:
    """Its agent leaves one grace period before the wall time ends. Another user's job starts on its node, but not
    before the time guaranteed by the site."""
    book = PilotJobs(SITE.replace(guaranteed_s=600))
    book.submitted(0, "1", 3600)

    def reported(now_s: float, planned_s: float | None) -> list[EndKnown]:
        shows = JobView("1", JobPhase.RUNNING, start_s=10, end_s=3610, planned_s=planned_s)
        return [item for item in book.update(now_s, now_s, shown(shows)) if isinstance(item, EndKnown)]

    assert reported(20, None) == [EndKnown("1", 3590)]
    assert reported(22, None) == []
    assert reported(24, 900) == [EndKnown("1", 900)]
    assert reported(26, 902) == [], "within a poll"
    assert reported(28, 100) == [EndKnown("1", 610)]
    assert reported(30, None) == [EndKnown("1", 3590)]
    book.noticed(40, "1", "SIGTERM")
    assert reported(42, 100) == [], "it leaves"


UNIX_S = 1.7e9


def test_the_end_of_a_job_is_reported_again_after_the_systems_clock_was_set() -> None:
    book = book_with("1")
    shows = shown(view("1", JobPhase.RUNNING, start_s=UNIX_S, end_s=UNIX_S + 3600, walltime_s=3600))
    end = EndKnown("1", UNIX_S + 3600 - SITE.grace_s)
    book.unix_ahead_s = UNIX_S - 86400  # a day behind the scheduler's
    assert book.update(10, 10, shows) == [end]
    book.unix_ahead_s = UNIX_S - 86400 + 0.01
    assert book.update(12, 12, shows) == []
    book.unix_ahead_s = UNIX_S
    assert book.update(14, 14, shows) == [end]
    assert book.update(16, 16, shows) == []


def test_the_end_of_a_wall_time_that_is_shorter_than_requested_is_announced_in_time() -> None:
    book = book_with("1", "2")
    book.unix_ahead_s = UNIX_S
    granted = {"start_s": UNIX_S + 100, "end_s": UNIX_S + 1000, "walltime_s": 900}
    short = view("1", JobPhase.RUNNING, **granted)
    full = view("2", JobPhase.RUNNING, **(granted | {"walltime_s": 3600}))  # its agent knows
    announced_s = 1000 - SITE.grace_s - 2 * SITE.poll_s
    assert events(book, announced_s - 1, announced_s - 1, shown(short, full)) == []
    assert events(book, announced_s, announced_s, shown(short, full)) == [JobNoticed("1", UNIX_S + 1000, ENDS)]
    assert events(book, announced_s + 1, announced_s + 1, shown(short, full)) == []
    assert leaving(book, announced_s + 1) == leaving(book, 1200) == [True, False]
    book.registered(1, "1", 0)
    (end,) = ended(book, view("1", JobPhase.OVER, JobEnd.COMPLETED, **granted), now_s=990)
    assert (end.ending, end.failed) == (JobEnd.WALLTIME, None)


def test_a_job_of_an_earlier_coordinator_that_runs_for_a_shorter_time_is_warned_of_its_end_too() -> None:
    book = PilotJobs(SITE, unix_ahead_s=UNIX_S)
    found = view("1", JobPhase.RUNNING, start_s=UNIX_S, end_s=UNIX_S + 900, walltime_s=900)
    assert events(book, 890, 890, shown(found)) == [JobNoticed("1", UNIX_S + 900, ENDS)]


def test_a_signal_near_the_end_of_the_wall_time_announces_that_whatever_the_clock_of_the_calls() -> None:
    book = book_with("1")
    book.unix_ahead_s = UNIX_S
    book.registered(1, "1", 0)
    book.noticed(3500, "1", "signal USR1")
    over = view("1", JobPhase.OVER, JobEnd.COMPLETED, start_s=UNIX_S, walltime_s=3600)
    (end,) = ended(book, over, now_s=3590)
    assert end.ending is JobEnd.WALLTIME


@pytest.mark.parametrize(("phase", "start_s"), [(JobPhase.PENDING, 0.0), (JobPhase.RUNNING, 9.0)])
def test_a_preemption_of_an_earlier_life_is_none_of_this_one(phase: JobPhase, start_s: float) -> None:
    book = book_with("1")
    assert events(book, 10, 10, shown(view("1", phase, preempt_s=8, start_s=start_s))) == []
    assert leaving(book, 10) == [False]


@pytest.mark.parametrize(
    ("ending", "came_s", "failed"),
    [
        (JobEnd.FAILED, None, True),
        (JobEnd.COMPLETED, None, True),
        (JobEnd.GONE, None, True),
        (JobEnd.FAILED, 9.0, True),
        (JobEnd.FAILED, 10 - STEADY_S, False),
        (JobEnd.COMPLETED, 9.0, False),
        (JobEnd.GONE, 9.0, False),
        (JobEnd.PREEMPTED, None, False),
        (JobEnd.NODE_FAILED, None, False),
        (JobEnd.CANCELLED, None, False),
        (JobEnd.WALLTIME, None, False),
    ],
)
def test_which_ends_are_failures(ending: JobEnd, came_s: float | None, failed: bool) -> None:
    book = book_with("1")
    if came_s is not None:
        book.registered(came_s, "1", 0)
    assert [end.failed is not None for end in ended(book, view("1", JobPhase.OVER, ending))] == [failed]


def test_a_job_that_is_not_shown_is_alive_until_it_is_missing_twice() -> None:
    book = book_with("1")
    assert events(book, 10, 10, shown()) == []
    assert events(book, 12, 12, shown(view("1", JobPhase.PENDING))) == []
    assert events(book, 14, 14, shown()) == []
    (end,) = ended(book, now_s=16)
    assert (end.job, end.ending, book.jobs) == ("1", JobEnd.GONE, {})


def test_an_answer_to_an_earlier_question_implies_nothing_about_a_newer_job() -> None:
    book = book_with()
    book.submitted(11, "1", 3600)
    for _ in range(5):
        assert events(book, 12, 10, shown()) == []
    assert "1" in book.jobs


def test_a_living_job_of_an_earlier_coordinator_is_taken_over_and_an_old_one_is_not() -> None:
    book = book_with()
    assert events(book, 10, 10, shown(view("7", JobPhase.RUNNING), view("8", JobPhase.OVER, JobEnd.COMPLETED))) == []
    book.registered(11, "99", 0)  # somebody's own batch script
    book.noticed(11, "99", "signal TERM")
    assert list(book.jobs) == ["7"]


@pytest.mark.parametrize("restart", [0, 1])
def test_a_requeued_job_lives_again(restart: int) -> None:
    book = book_with("1")
    book.update(10, 10, shown(view("1", JobPhase.RUNNING, preempt_s=8)))
    book.noticed(11, "1", "signal TERM")
    assert events(book, 30, 30, shown(view("1", JobPhase.PENDING, restart=restart))) == []
    (kept,) = book.scaling_jobs(30)
    assert (kept.phase, kept.leaving) == (JobPhase.PENDING, False)


def test_an_agent_of_a_later_life_may_come_before_the_scheduler_shows_it() -> None:
    book = book_with("1", joined=True)
    book.noticed(30, "1", "signal TERM")
    book.registered(40, "1", 1)
    assert events(book, 41, 41, shown(view("1", JobPhase.RUNNING, restart=1))) == []
    assert leaving(book, 41) == [False]


def test_nodes_that_others_take_count_until_two_polls_after_it_is_over() -> None:
    book = book_with("1", "2", "3", joined=True)
    assert book.yielding(9) == 0
    book.update(10, 10, shown(view("1", JobPhase.RUNNING, preempt_s=8), *(view(job, JobPhase.RUNNING) for job in "23")))
    assert book.yielding(10) == 1
    over = view("1", JobPhase.OVER, JobEnd.PREEMPTED)
    ended(book, over, view("2", JobPhase.RUNNING), view("3", JobPhase.RUNNING), now_s=14)
    assert (book.yielding(17.9), book.yielding(18)) == (1, 0)
    book.noticed(20, "2", "signal USR1")
    assert book.yielding(30) == 1
    book.noticed(31, "3", "wall time")
    assert book.yielding(32) == 1
    book.cancelled(33, ["2"])
    assert book.yielding(34) == 0


def test_one_agents_notice_does_not_hold_up_submission_for_as_long_as_its_job_lives() -> None:
    """A job of several nodes survives when one of its agents leaves."""
    book = book_with("1", joined=True)
    book.noticed(10, "1", "signal TERM")
    assert (book.yielding(20), leaving(book, 20)) == (1, [True])
    assert (book.yielding(35), leaving(book, 35)) == (0, [False])


def test_a_job_with_an_agent_that_answers_is_not_over_whatever_the_scheduler_answers() -> None:
    book = book_with("1", "2", joined=True)
    book.connected(2, frozenset({"1", "2"}))
    for now_s in (10, 12, 14):
        assert events(book, now_s, now_s, shown(view("2", JobPhase.OVER, JobEnd.COMPLETED))) == []
    assert book.contradicted() == ["1", "2"]
    assert leaving(book, 14) == [False, False]
    book.connected(15, frozenset())
    assert [end.job for end in ended(book, view("2", JobPhase.OVER, JobEnd.COMPLETED), now_s=16)] == ["2", "1"]


def test_a_job_that_is_listed_elsewhere_is_not_over() -> None:
    book = book_with("1", "2")
    answer = QueueSnapshot({"2": view("2", JobPhase.OVER, JobEnd.COMPLETED)}, listed=frozenset({"1", "2"}))
    for now_s in (10, 12, 14):
        assert events(book, now_s, now_s, answer) == []
    assert book.to_cancel(14) == []


def test_a_job_that_nobody_confirms_is_over_when_the_scheduler_agrees_to_cancel_it() -> None:
    book = book_with("1")
    assert events(book, 10, 10, shown(view("1", JobPhase.OVER, JobEnd.FAILED))) == []
    assert (book.to_cancel(10), leaving(book, 10)) == (["1"], [True])
    assert events(book, 12, 12, shown(view("1", JobPhase.RUNNING))) == []
    assert (book.to_cancel(12), leaving(book, 12)) == ([], [False])
    assert [end.ending for end in ended(book, view("1", JobPhase.OVER, JobEnd.FAILED), now_s=14)] == [JobEnd.FAILED]
    assert book.jobs == {}


def test_an_agent_that_is_silent_beyond_its_lease_is_dead_and_its_job_is_cancelled() -> None:
    book = book_with("1", "2", joined=True)
    lease_s = SITE.orphan_s + SITE.heartbeat_s
    book.connected(20, frozenset({"1", "2"}))
    book.connected(20, frozenset({"1"}))
    both = shown(view("1", JobPhase.RUNNING), view("2", JobPhase.RUNNING))
    assert events(book, 20 + lease_s, 20 + lease_s, both) == []
    assert book.to_cancel(20 + lease_s) == []
    book.update(21 + lease_s, 21 + lease_s, both)
    assert (book.to_cancel(21 + lease_s), leaving(book, 21 + lease_s)) == (["2"], [False, True])


def test_a_job_whose_agent_never_comes_is_dead_after_a_longer_time() -> None:
    book = book_with("1")
    book.update(10, 10, shown(view("1", JobPhase.RUNNING)))
    assert leaving(book, 10 + STARTING_S) == [False]
    assert leaving(book, 11 + STARTING_S) == [True]


@pytest.mark.parametrize("asked_first", [True, False], ids=["we cancelled it first", "the scheduler reported it first"])
def test_a_dead_node_is_reported_whoever_finds_it_first(asked_first: bool) -> None:
    book = book_with("1", joined=True)
    dead_s = 2 + SITE.orphan_s + SITE.heartbeat_s
    now_s = dead_s if asked_first else 10.0
    book.update(now_s, now_s, shown(view("1", JobPhase.RUNNING)))
    cancelled = book.to_cancel(now_s)
    book.asked_to_cancel(now_s, cancelled, 2)
    book.cancelled(now_s, cancelled)
    (end,) = ended(book, view("1", JobPhase.OVER, JobEnd.CANCELLED if asked_first else JobEnd.NODE_FAILED), now_s=now_s)
    assert (end.ending, end.failed) == (JobEnd.NODE_FAILED, None)
    assert ("longer than its lease" in end.detail) == asked_first


def test_a_job_that_was_suspended_for_longer_than_its_lease_has_a_new_one_when_it_goes_on() -> None:
    book = book_with("1", joined=True)
    book.update(10, 10, shown(view("1", JobPhase.SUSPENDED)))
    book.update(9000, 9000, shown(view("1", JobPhase.RUNNING)))
    assert (leaving(book, 9001), book.to_cancel(9001)) == ([False], [])
    assert book.to_cancel(9001 + SITE.orphan_s + SITE.heartbeat_s) == ["1"]


def test_a_suspended_job_is_not_counted_on_and_not_cancelled() -> None:
    book = book_with("1", joined=True)
    suspended = shown(view("1", JobPhase.SUSPENDED))
    assert events(book, 10, 10, suspended) == [JobSuspended("1")]
    assert events(book, 12, 12, suspended) == []
    assert (leaving(book, 9000), book.to_cancel(9000)) == ([True], [])
    book.registered(9001, "1", 0)
    book.update(9002, 9002, shown(view("1", JobPhase.RUNNING)))
    assert leaving(book, 9002) == [False]


def test_a_pilot_that_leaves_when_its_suspended_job_goes_on_was_preempted() -> None:
    book = book_with("1", joined=True)
    book.update(10, 10, shown(view("1", JobPhase.SUSPENDED)))
    (end,) = ended(book, view("1", JobPhase.OVER, JobEnd.COMPLETED), now_s=100)
    assert end.ending is JobEnd.PREEMPTED


def test_attempts_to_cancel_and_to_kill_are_made_at_ever_longer_intervals() -> None:
    book = book_with("1")
    asked_s, killed_s = [], []
    for now_s in range(200):
        if due := book.due(now_s, ["1"], lambda record: record.cancelling):
            asked_s.append(now_s)
            book.asked_to_cancel(now_s, due, SITE.poll_s)
        if due := book.due(now_s, book.overdue(now_s), lambda record: record.killing):
            killed_s.append(now_s)
            book.killed(now_s, due)
    assert asked_s == [0, 2, 6, 14, 30, 62, 126]
    assert killed_s == [23, 25, 29, 37, 53, 85, 149]


def test_pending_jobs_are_cancelled_first_at_the_end() -> None:
    book = book_with("1", "2", "3")
    book.registered(1, "1", 0)
    assert book.uncancelled() == ["2", "3", "1"]
    book.cancelled(5, ["2"])
    assert book.uncancelled() == ["3", "1"]


def test_pilots_work_once_one_that_came_since_the_last_failure_has_stayed() -> None:
    book = book_with("1")
    book.registered(10, "1", 0)
    assert not book.works(10 + STEADY_S - 1, after_s=0)
    assert book.works(10 + STEADY_S, after_s=0)
    assert not book.works(10 + STEADY_S, after_s=20)


def held(book: PilotJobs, now_s: float) -> list[str]:
    return [job.job for job in book.scaling_jobs(now_s) if job.held]


def test_a_held_job_is_not_counted_on_after_a_while_and_one_that_waits_for_its_time_not_until_shortly_before() -> None:
    book = book_with("1", "2", "3")
    stopped = JobView("1", JobPhase.PENDING, held=True)
    later = JobView("2", JobPhase.PENDING, start_s=130, held=True)
    for now_s in (10, 10 + HELD_S - 1):
        book.update(now_s, now_s, shown(stopped, later, view("3", JobPhase.PENDING, start_s=5000)))
        assert held(book, now_s) == ["2"]
    assert held(book, 10 + HELD_S) == ["1", "2"]
    assert held(book, 130 - SOON_POLLS * SITE.poll_s + 1) == ["1"]
    book.update(80, 80, shown(view("1", JobPhase.PENDING)))
    book.update(82, 82, shown(stopped))
    assert held(book, 83) == ["2"], "the first was released in between"


def test_the_commonest_reasons_are_counted() -> None:
    book = book_with(*"123456")
    reasons = ["Resources", "Resources", "JobHeldUser", "a", "b", ""]
    views = [JobView(str(n), JobPhase.PENDING, detail=reason) for n, reason in enumerate(reasons, 1)]
    book.update(1, 1, shown(*views[:3]))
    assert book.waits_for() == "2 × Resources; 1 × JobHeldUser"
    book.update(2, 2, shown(*views))
    assert book.waits_for() == "2 × Resources; 1 × JobHeldUser; 1 × a; 2 for other reasons"


def test_how_long_pending_jobs_have_waited_and_when_the_first_is_expected_to_start() -> None:
    book = book_with("1", "2", "3")
    assert (book.waited_s(10), book.expected_s()) == (10, None)
    views = [view("1", JobPhase.RUNNING, start_s=5), view("2", JobPhase.PENDING, start_s=70)]
    book.update(10, 10, shown(*views, view("3", JobPhase.PENDING, start_s=60)))
    assert (book.waited_s(12), book.expected_s()) == (12, 60)
    book.cancelled(13, ["3"])
    assert book.expected_s() == 70
    book.cancelled(13, ["2"])
    assert (book.waited_s(14), book.expected_s()) == (None, None)
