"""PBS's answers, after its documentation (PBS was not run here)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from pilot.core.errors import SubmitError
from pilot.io.site import Site
from pilot.provisioning.scheduler import Ending, JobPhase
from pilot.provisioning.scheduler_pbs import PbsQueue
from tests.unit.provisioning.recordings import PREFIX, Recorded, loaded

SITE = Site(name="x", scheduler="pbspro", queue="preemptable", account="abc", max_jobs=20, max_jobs_scope="project")
ANSWERS = {next(iter(answer["Jobs"])): answer for answer in loaded("qstat-openpbs-23.06.json").values()}
ID = {name: next(iter(answer["Jobs"])) for name, answer in loaded("qstat-openpbs-23.06.json").items()}


def qstat(command: Sequence[str]) -> str:
    *options, job = command[1:]
    assert options == ["-x", "-f", "-F", "json"]
    if job not in ANSWERS:
        raise SubmitError(f"qstat failed: qstat: Unknown Job Id {job}")
    return json.dumps(ANSWERS[job])


def qselect(command: Sequence[str]) -> str:
    assert command[-2:] == ["-q", "preemptable"]
    return "101.pbs-01\n112.pbs-01\n" if command[1] == "-u" else "101.pbs-01\n112.pbs-01\n300.pbs-01\n"


def recorded() -> Recorded:
    return Recorded({"qstat": qstat, "qselect": qselect, "qdel": ""})


def queue(run: Recorded, site: Site = SITE) -> PbsQueue:
    return PbsQueue(site, PREFIX, run, user="ada")


@pytest.mark.parametrize(
    ("name", "phase", "ending", "restart"),
    [
        ("running", JobPhase.RUNNING, None, 0),
        ("queued", JobPhase.PENDING, None, 0),
        ("requeued", JobPhase.PENDING, None, 1),
        ("rerun", JobPhase.RUNNING, None, 1),
        ("exiting", JobPhase.RUNNING, None, 0),
        ("completed", JobPhase.OVER, Ending.COMPLETED, 0),
        ("failed", JobPhase.OVER, Ending.FAILED, 0),
        ("walltime", JobPhase.OVER, Ending.WALLTIME, 0),
        ("terminated", JobPhase.OVER, Ending.GONE, 0),
        ("node_failed", JobPhase.OVER, Ending.NODE_FAILED, 0),
        ("deleted_while_queued", JobPhase.OVER, Ending.GONE, 0),
    ],
)
def test_every_state_is_read(name: str, phase: JobPhase, ending: Ending | None, restart: int) -> None:
    view = queue(recorded()).poll([ID[name]], 0).jobs[ID[name]]
    assert (view.phase, view.ending, view.restart) == (phase, ending, restart)


def test_wall_time_and_start_are_read() -> None:
    view = queue(recorded()).poll([ID["running"]], 0).jobs[ID["running"]]
    assert view.walltime_s == 72 * 3600
    assert view.start_s is not None
    assert view.end_s == view.start_s + 72 * 3600


def test_ids_are_asked_one_by_one() -> None:
    run = recorded()
    queue(run).poll([ID["running"], ID["queued"]], 0)
    assert [command[-1] for command in run.asked if command[0] == "qstat"] == ["101.pbs-01", "102.pbs-01", "112.pbs-01"]


def test_a_job_of_ours_is_found_by_its_name_and_a_stranger_is_asked_for_once() -> None:
    run = recorded()
    pbs = queue(run)
    assert set(pbs.poll([], 0).jobs) == {"101.pbs-01"}
    pbs.poll(["101.pbs-01"], 0)
    assert sum("112.pbs-01" in command for command in run.asked) == 1


def test_an_unknown_job_is_not_shown() -> None:
    assert "999.pbs-01" not in queue(recorded()).poll(["999.pbs-01"], 0).jobs


def test_a_server_without_history_is_asked_for_living_jobs_only() -> None:
    def without_history(command: Sequence[str]) -> str:
        if "-x" in command:
            raise SubmitError(f"qstat failed: qstat: PBS is not configured to maintain job history {command[-1]}")
        if command[-1] == ID["completed"]:
            raise SubmitError(f"qstat failed: qstat: Unknown Job Id {command[-1]}")
        return json.dumps(ANSWERS[command[-1]])

    run = recorded()
    run.answers["qstat"] = without_history
    pbs = queue(run)
    for _ in range(2):
        assert set(pbs.poll([ID["running"], ID["completed"]], 0).jobs) == {ID["running"]}
    assert sum("-x" in command for command in run.asked) == 1


@pytest.mark.parametrize(("changes", "others"), [({}, 2), ({"max_jobs_scope": "user"}, 1), ({"max_jobs": None}, 0)])
def test_jobs_of_others_that_count_against_the_cap(changes: dict[str, object], others: int) -> None:
    assert queue(recorded(), SITE.replace(**changes)).poll([], 0).others == others


@pytest.mark.parametrize("answer", ["", "[1]", "{bad"])
def test_an_answer_that_cannot_be_read_is_an_error(answer: str) -> None:
    run = recorded()
    run.answers["qstat"] = answer
    with pytest.raises(SubmitError, match="cannot be read"):
        queue(run).poll(["101.pbs-01"], 0)


def test_a_server_that_does_not_answer_is_an_error() -> None:
    run = recorded()
    run.answers["qselect"] = SubmitError("qselect failed: cannot connect to server")
    with pytest.raises(SubmitError, match="cannot connect"):
        queue(run).poll([], 0)


def test_kill_names_the_jobs() -> None:
    run = recorded()
    queue(run).kill(["101.pbs-01"])
    assert run.asked == [["qdel", "-W", "force", "101.pbs-01"]]
