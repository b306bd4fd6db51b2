"""A pool that has seen thousands of pilots keeps the files of the newest ones, and of those that are alive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilot.core.ids import NodeId
from pilot.service.durability import housekeeping
from pilot.service.durability.housekeeping import tidy


def job(pilots: Path, number: int, *, over: bool = True) -> str:
    """The files of the ``number``-th job, as Parsl and the coordinator leave them; returns its name."""
    token = f"token_{number:06d}.connection.json"
    name = f"pilot-0123456789.{1_700_000_000 + number}.25"
    for ending, text in (("sh", f"env PILOT_CONNECTION='{pilots / token}' pilot agent"), ("sh.err", "said")):
        path = pilots / f"{name}.{ending}"
        path.write_text(text)
        os.utime(path, (number, number))
    if not over:
        (pilots / token).touch()
    return name


def test_the_newest_jobs_and_the_living_ones_keep_their_files(tmp_path: Path) -> None:
    living = job(tmp_path, 1, over=False)
    names = [job(tmp_path, number) for number in range(2, 302)]
    (tmp_path / "notes.txt").touch()
    assert tidy(tmp_path, [], []) == 2 * (301 - housekeeping.KEPT - 1)
    left = {path.name for path in tmp_path.glob("*.sh")}
    assert left == {f"{name}.sh" for name in [living, *names[-housekeeping.KEPT :]]}
    assert {path.name for path in tmp_path.glob("*.err")} == {f"{name}.err" for name in left}
    assert (tmp_path / "notes.txt").exists()
    assert tidy(tmp_path, [], []) == 0


def log(logs: Path, name: str, number: int, size: int = 10) -> None:
    path = logs / name
    path.write_bytes(b"x" * size)
    os.utime(path, (number, number))


def test_logs_of_pilots_that_are_gone_are_few_and_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "KEPT", 3)
    monkeypatch.setattr(housekeeping, "KEPT_BYTES", 1000)
    here = NodeId("n1.login.pilot-1-ab")
    log(tmp_path, f"{here}.log", 0, 5000)
    log(tmp_path, f"{here}.log.1", 0, 5000)
    for number in range(1, 7):
        for ending in ("0.log", "1.log", "1.log.1"):
            log(tmp_path, f"n{number}.login.pilot-9-cd.{ending}", number)
    tidy(tmp_path, [(tmp_path, "")], [here])
    left = {path.name for path in tmp_path.iterdir()}
    assert {f"{here}.log", f"{here}.log.1"} <= left, "it lives"
    assert {name.partition(".")[0] for name in left - {f"{here}.log", f"{here}.log.1"}} == {"n4", "n5", "n6"}
    log(tmp_path, "n6.login.pilot-9-cd.0.log", 9, 1000)
    tidy(tmp_path, [(tmp_path, "")], [here])
    assert {path.name.partition(".")[0] for path in tmp_path.iterdir()} == {"n1", "n6"}, "the newest stays"
