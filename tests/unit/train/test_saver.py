"""The processes of a node write their shards together, each its part."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pilot.checkpoint import names, store
from pilot.checkpoint.publish import own_rows
from pilot.core.errors import CheckpointError, Unreadable, UserError
from pilot.core.ids import TrainerUid
from pilot.protocol.run_identity import ALL_EPOCHS
from pilot.rundir import trainer_folder
from pilot.train.node.membership import Membership
from pilot.train.ranks import saver
from pilot.train.ranks.saver import Saver
from tests.unit.train.test_periodic import DEADLINE_S, Rank

GROUP = Membership(2, 0, 1)


def write(rank: Rank, directory: Path, number: int) -> None:
    one = Saver("t1", "", directory, 3, rank.outcomes.put, per_node=2)
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
        assert first.outcomes.empty()
        time.sleep(0.01)
    write(second, tmp_path, 1)
    done = first.outcomes.get(timeout=DEADLINE_S)
    over.set()
    writer.join()
    assert (done.error, done.step) == ("", 5)
    assert store.load_newest(tmp_path, 1, lambda *_: None, "") is not None


@pytest.mark.usefixtures("limit_s")
def test_a_part_that_nobody_writes_is_not(tmp_path: Path) -> None:
    first = Rank(tmp_path)
    write(first, tmp_path, 0)
    assert first.outcomes.get(timeout=DEADLINE_S).error == "g000001-s00000005.part1of2.h5: the file is missing"


def test_a_trainer_that_starts_from_another_may_have_fewer_epochs_and_one_that_resumes_may_not(tmp_path: Path) -> None:
    other, own = tmp_path / "other" / "checkpoints", tmp_path / "own" / "checkpoints"
    for directory in (other, own):
        directory.mkdir(parents=True)
    source = Rank(other)
    source.training.ends_at(ALL_EPOCHS, 20)
    written = store.write(other, 1, 5, source.training.encoded(), 3)
    trainer_folder.start_from(own.parent, [str(written.path)])
    resumed, started = Rank(other), Rank(own)
    for rank in (resumed, started):
        state = rank.saver.load(GROUP, pytest.fail, None)
        assert state is not None
        rank.training.restore(state)
    started.training.ends_at(ALL_EPOCHS, 4)
    assert started.training.changes == []
    with pytest.raises(UserError, match="was 20 and is 4"):
        resumed.training.ends_at(ALL_EPOCHS, 4)


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried again."""
    monkeypatch.setattr(saver, "_READ_AGAIN_S", ())


@pytest.mark.usefixtures("once")
def test_it_starts_from_scratch_only_where_there_certainly_is_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    one = Rank(directory).saver
    assert one.load(GROUP, pytest.fail, None) is None
    with pytest.raises(Unreadable, match=rf"step 67 was saved, and there is no checkpoint in {directory}"):
        one.load(replace(GROUP, saved_step=67), pytest.fail, None)
    trainer_folder.mark(tmp_path, TrainerUid("f" * 32))
    with pytest.raises(CheckpointError, match="it is the folder of another trainer"):
        one.load(GROUP, pytest.fail, None)
    (tmp_path / ".trainer_uid").unlink()
    away = directory.rename(tmp_path / "away")
    with pytest.raises(Unreadable, match="No such file or directory"):
        one.load(GROUP, lambda _: None, None)
    away.rename(directory)
    (directory / names.checkpoint_name(1, 67)).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"s00000067\.h5 cannot be used: the file is empty") as caught:
        one.load(GROUP, lambda _: None, None)
    assert not caught.value.transient
    assert one.load(replace(GROUP, given_up=1), pytest.fail, None) is None


@pytest.mark.usefixtures("once")
def test_a_checkpoint_to_start_from_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    directory = tmp_path / "checkpoints"
    directory.mkdir()
    (tmp_path / "start").mkdir()
    start = trainer_folder.start_of(tmp_path)
    start.symlink_to("/proc/self/mem")
    one = Rank(directory).saver
    with pytest.raises(Unreadable, match="Input/output error"):
        one.load(GROUP, pytest.fail, None)
    start.unlink()
    with pytest.raises(UserError, match=r"cannot start from the given checkpoint: .* the file is missing"):
        one.load(GROUP, pytest.fail, None)


def test_a_folder_that_returns_soon_is_loaded_and_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, notes = tmp_path / "checkpoints", list[str]()
    rank = Rank(directory)
    store.write(directory, 1, 5, rank.training.encoded(), 3)
    away = directory.rename(tmp_path / "away")
    monkeypatch.setattr(saver, "_READ_AGAIN_S", (0.0, 0.0, 0.0))
    pauses = iter([lambda: None, lambda: away.rename(directory)])
    monkeypatch.setattr(saver.time, "sleep", lambda _: next(pauses)())
    assert rank.saver.load(GROUP, notes.append, None) is not None
    why = f"cannot read the folder {directory}: No such file or directory"
    assert notes == [f"its state cannot be loaded now, which is tried again: {why}"]
