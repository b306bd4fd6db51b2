"""The processes of a node write their shards together, each its part."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from pilot.checkpoint import names, store
from pilot.checkpoint.own_rows import own_rows
from pilot.core.errors import UserError
from pilot.core.run_identity import ALL_EPOCHS
from pilot.io import trainer_folder
from pilot.train.ranks import saver
from pilot.train.ranks.saver import Saver
from tests.unit.train.test_periodic import DEADLINE_S, Rank


def write(rank: Rank, directory: Path, number: int) -> None:
    one = Saver("t1", "", directory, 3, rank.told.put, per_node=2)
    state = own_rows(rank.training.encoded(), number, 2)
    one.write(1, 5, state, asked=True, part=(number, rank.training.shared()))


@pytest.fixture
def limit_s(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(saver, "_PARTS_LIMIT_S", 0.5)
    return 0.5


def test_a_part_that_is_written_for_long_is_awaited(tmp_path: Path, limit_s: float) -> None:
    first, second = Rank(tmp_path), Rank(tmp_path)
    over = threading.Event()

    def grow() -> None:
        of_another_process = f".{names.part_name(1, 5, 1, 2)}.1-1@elsewhere.tmp"
        with (tmp_path / of_another_process).open("wb", buffering=0) as file:
            while not over.wait(0.01):
                file.write(b"x")

    writer = threading.Thread(target=grow)
    writer.start()
    began_s = time.monotonic()
    write(first, tmp_path, 0)
    while time.monotonic() < began_s + 3 * limit_s:
        assert first.told.empty()
        time.sleep(0.01)
    write(second, tmp_path, 1)
    done = first.told.get(timeout=DEADLINE_S)
    over.set()
    writer.join()
    assert (done.error, done.step) == ("", 5)
    assert store.load_newest(tmp_path, 1, lambda *_: None, "") is not None


@pytest.mark.usefixtures("limit_s")
def test_a_part_that_nobody_writes_is_not(tmp_path: Path) -> None:
    first = Rank(tmp_path)
    write(first, tmp_path, 0)
    assert first.told.get(timeout=DEADLINE_S).error == "g000001-s00000005.part1of2.h5: the file is missing"


def test_a_trainer_that_starts_from_another_may_have_fewer_epochs_and_one_that_resumes_may_not(tmp_path: Path) -> None:
    other, own = tmp_path / "other" / "checkpoints", tmp_path / "own" / "checkpoints"
    for directory in (other, own):
        directory.mkdir(parents=True)
    whole = Rank(other)
    whole.training.ends_at(ALL_EPOCHS, 20)
    written = store.write(other, 1, 5, whole.training.encoded(), 3)
    trainer_folder.start_from(own.parent, [str(written.path)])
    resumed, started = Rank(other), Rank(own)
    for rank in (resumed, started):
        state = rank.saver.load(1, pytest.fail, None)
        assert state is not None
        rank.training.restore(state)
    started.training.ends_at(ALL_EPOCHS, 4)
    assert started.training.changes == []
    with pytest.raises(UserError, match="was 20 and is 4"):
        resumed.training.ends_at(ALL_EPOCHS, 4)
