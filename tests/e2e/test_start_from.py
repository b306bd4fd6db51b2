"""A new trainer starts from another one's checkpoint if told to, and is independent of it from then on."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import pytest

from pilot.checkpoint import store
from pilot.rundir.rundir import RunDir
from tests.e2e.proof import proved
from tests.integration.live_pool import until
from tests.pools import TRAIN, Pool


def newest(pool: Pool, name: str) -> Path:
    return store.listing(RunDir(pool.run_dir).trainer(name) / "checkpoints")[0].path


@pytest.mark.slow
def test_a_trainer_starts_from_one_of_an_earlier_pool_and_from_a_file_of_nobodys(pool: Pool) -> None:
    pool.up()
    pool.agent()
    assert pool.submit(TRAIN, "--epochs", "3", "--step-s", "0.01", options=("--name", "first")) == "first"
    pool.pilot("wait", "first")
    first = pool.trainer("first")
    pool.pilot("down")
    pool.up()
    pool.agent()
    pool.submit(TRAIN, "--epochs", "5", "--step-s", "0.01", options=("--name", "more", "--from", "first"))
    pool.pilot("wait", "more")
    more = pool.trainer("more")
    journal = (pool.run_dir / "journal.jsonl").read_text()
    formed = re.findall(r'"GroupFormed","trainer":"more","generation":(\d+),"step":(\d+),"resumed":(\d+)', journal)
    assert [tuple(map(int, row)) for row in formed] == [(first.generation + 1, first.step, first.step)]
    proved(pool, "more", 5)
    path = newest(pool, "more")
    with h5py.File(path, locking=False) as file:
        assert file.attrs["trainer_uid"] == more.uid != first.uid
    old = pool.folder / "of-an-earlier-version.h5"
    old.write_bytes(path.read_bytes())
    with h5py.File(old, "r+", locking=False) as file:
        del file.attrs["trainer_uid"]
    pool.submit(TRAIN, "--epochs", "2000", "--step-s", "0.01", options=("--name", "again", "--from", str(old)))
    old.unlink()
    until(lambda: pool.trainer("again").step > more.step)
    pool.pilot("down")


def test_what_it_cannot_start_from_is_refused_before_it_is_submitted(pool: Pool) -> None:
    pool.up()
    for given, why in (("nobody", "no trainer of this name"), (str(TRAIN), "not an HDF5 file")):
        done = pool.pilot("submit", "--from", given, TRAIN, check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert f"--from {given}: " in done.stderr
        assert why in done.stderr
    assert pool.status().trainers == []
    pool.pilot("down")
