"""Which checkpoint is loaded, which are kept, which are removed."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import h5py
import pytest
import torch

from pilot.checkpoint import names, store
from pilot.core.errors import CheckpointError, UserError
from pilot.core.ids import NO_UID, TrainerUid
from pilot.rundir import trainer_folder
from tests.unit.checkpoint.states import difference

STATE = {"w": torch.rand(50, 7), "nested": [{"bias": torch.rand(9)}, torch.arange(3)], "step": 4}


def _write(directory: Path, generation: int, step: int, kept: int = 10) -> Path:
    return store.write(directory, generation, step, {"w": torch.full((50,), float(step))}, kept).path


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_the_newest_is_of_the_highest_generation_then_of_the_highest_step(tmp_path: Path) -> None:
    for generation, step in [(2, 50), (1, 900), (2, 60), (1, 1000)]:
        _write(tmp_path, generation, step)
    loaded = store.load_newest(tmp_path, granted=2)
    assert loaded is not None
    assert (loaded.generation, loaded.step, loaded.skipped) == (2, 60, [])
    assert loaded.state["w"][0] == 60


def test_names_that_have_outgrown_their_zeros_keep_their_order(tmp_path: Path) -> None:
    _write(tmp_path, 999_999, 5)
    _write(tmp_path, 1_000_000, 100_000_000)
    _write(tmp_path, 1_000_000, 99_999_999)
    loaded = store.load_newest(tmp_path, granted=1_000_000)
    assert loaded is not None
    assert (loaded.generation, loaded.step) == (1_000_000, 100_000_000)


def test_a_generation_that_was_not_granted_is_skipped_with_the_reason(tmp_path: Path) -> None:
    _write(tmp_path, 3, 10)
    rogue = _write(tmp_path, 4, 20)
    heard: list[tuple[Path, str]] = []
    loaded = store.load_newest(tmp_path, 3, lambda path, reason: heard.append((path, reason)))
    assert loaded is not None
    assert (loaded.generation, loaded.step) == (3, 10)
    assert loaded.skipped == heard == [(rogue, "generation 4 was not granted (only up to 3)")]


def test_none_where_nothing_can_be_loaded_and_the_reasons_are_heard(tmp_path: Path) -> None:
    assert store.load_newest(tmp_path, 9) is None
    (tmp_path / "g000001-s00000001.h5").write_bytes(b"")
    (tmp_path / "g000001-s00000002.h5").write_bytes(b"no HDF5 at all")
    (tmp_path / "g000001-s00000003.h5").mkdir()
    heard: dict[str, str] = {}
    with pytest.raises(CheckpointError, match=r"nor the 2 before it\): Is a directory"):
        store.load_newest(tmp_path, 9, lambda path, reason: heard.update({path.name: reason}))
    assert heard == {
        "g000001-s00000001.h5": "the file is empty",
        "g000001-s00000002.h5": "not an HDF5 file",
        "g000001-s00000003.h5": "Is a directory",
    }


def test_another_name_inside_than_outside_is_damage_but_a_copy_may_have_any_name(tmp_path: Path) -> None:
    path = _write(tmp_path, 1, 5)
    renamed = path.rename(tmp_path / names.checkpoint_name(2, 5))
    assert store.verify(renamed) == ["g000002-s00000005.h5: it holds generation 1, step 5"]
    with pytest.raises(CheckpointError, match="it holds generation 1, step 5"):
        store.load_newest(tmp_path, 2)
    copy = renamed.rename(tmp_path / "best.h5")
    assert store.verify(copy) == []
    assert store.load(copy).step == 5


@pytest.mark.parametrize(
    ("writes", "left"),
    [
        ([(1, 1, 2), (1, 2, 2), (1, 3, 2)], [(1, 2), (1, 3)]),
        ([(5, 50, 9), (1, 1, 9), (2, 2, 1)], [(2, 2), (5, 50)]),
    ],
)
def test_the_last_ones_are_kept_and_all_that_are_newer(
    tmp_path: Path, writes: list[tuple[int, int, int]], left: list[tuple[int, int]]
) -> None:
    for generation, step, kept in writes:
        _write(tmp_path, generation, step, kept)
    assert _names(tmp_path) == [names.checkpoint_name(*age) for age in left]


def test_at_least_one_is_kept(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="at least 1"):
        _write(tmp_path, 1, 1, kept=0)
    assert _names(tmp_path) == []


def test_other_files_in_the_directory_stay(tmp_path: Path) -> None:
    (tmp_path / "best.h5").write_text("mine")
    (tmp_path / ".g000001-s00000001.h5.swp").write_text("an editor's")
    _write(tmp_path, 1, 1, kept=1)
    _write(tmp_path, 1, 2, kept=1)
    assert _names(tmp_path) == [".g000001-s00000001.h5.swp", "best.h5", "g000001-s00000002.h5"]


def test_the_same_step_twice_replaces_the_file(tmp_path: Path) -> None:
    store.write(tmp_path, 1, 1, {"w": torch.zeros(3)}, kept=1)
    store.write(tmp_path, 1, 1, {"w": torch.ones(3)}, kept=1)
    loaded = store.load_newest(tmp_path, 1)
    assert loaded is not None
    assert loaded.state["w"].tolist() == [1, 1, 1]


def _temporary(directory: Path, pid: int, started: int, host: str, age_s: float = 0) -> Path:
    path = directory / f".g000001-s00000001.h5.{pid}-{started}@{host}.tmp"
    path.write_bytes(b"unfinished")
    now_s = path.stat().st_mtime
    os.utime(path, (now_s - age_s, now_s - age_s))
    return path


def test_files_of_dead_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    me, host = os.getpid(), socket.gethostname()
    started = names.started_ticks(me)
    assert started is not None
    living = _temporary(tmp_path, me, started, host, age_s=10_000)
    reused_pid = _temporary(tmp_path, me, started - 1, host)
    no_such_process = _temporary(tmp_path, 2**30, 1, host)
    elsewhere_writing = _temporary(tmp_path, 2**30, 1, "elsewhere")
    elsewhere_idle = _temporary(tmp_path, 2**30, 2, "elsewhere", age_s=10_000)
    _write(tmp_path, 1, 2)
    assert living.exists()
    assert elsewhere_writing.exists()
    assert not any(path.exists() for path in (reused_pid, no_such_process, elsewhere_idle))


def test_a_temporary_file_is_never_loaded_and_is_reported(tmp_path: Path) -> None:
    _write(tmp_path, 1, 1)
    whole = _write(tmp_path, 1, 2)
    temporary = whole.rename(tmp_path / names.temporary_name(whole.name))
    loaded = store.load_newest(tmp_path, 1)
    assert loaded is not None
    assert loaded.step == 1
    assert loaded.skipped == [(temporary, "a temporary file: it was not finished")]


def test_what_is_known_of_the_next_step_lies_beside_its_checkpoint_and_goes_with_it(tmp_path: Path) -> None:
    store.write_next_step(tmp_path, 1, 1, b"first")
    first = _write(tmp_path, 1, 1)
    assert store.next_step_of(first) == b"first"
    assert store.next_step_of(_write(tmp_path, 1, 2)) == store.next_step_of(tmp_path / "mine.h5") == b""
    store.write_next_step(tmp_path, 1, 4, b"fourth")
    _write(tmp_path, 1, 3, kept=1)
    assert _names(tmp_path) == ["g000001-s00000003.h5", "g000001-s00000004.next"]


def test_an_unfinished_next_step_is_removed_silently(tmp_path: Path) -> None:
    path = _write(tmp_path, 1, 1)
    left = tmp_path / f".g000001-s00000001.next.1-1@{socket.gethostname()}.tmp"
    left.touch()
    loaded = store.load_newest(tmp_path, 1)
    assert loaded is not None
    assert (loaded.path, loaded.skipped) == (path, [])
    _write(tmp_path, 1, 2)
    assert not left.exists()


def test_a_file_rewritten_by_an_hdf5_tool_is_loaded(tmp_path: Path) -> None:
    path = store.write(tmp_path, 1, 1, STATE, kept=1).path
    moved = tmp_path / "moved.h5"
    with h5py.File(path, locking=False) as file, h5py.File(moved, "w") as copy:
        copy["something/first"] = torch.arange(10_000).numpy()
        for name in file:
            file.copy(name, copy)
    assert store.verify(moved) == []
    assert difference(STATE, store.load(moved).state) is None


def test_wrong_offsets_do_no_harm(tmp_path: Path) -> None:
    path = store.write(tmp_path, 1, 1, STATE, kept=1).path
    with h5py.File(path, "r+") as file:
        file["checkpoint/offsets"][...] = [-5, 1, 2**62]
    assert store.verify(path) == []
    assert difference(STATE, store.load(path).state) is None


OURS, OTHERS = TrainerUid("0123456789abcdef" * 2), TrainerUid("f" * 32)


def test_a_checkpoint_of_another_trainer_or_of_none_is_loaded_only_by_its_name(tmp_path: Path) -> None:
    copies = tmp_path / "mine" / "checkpoints"
    for generation, uid in ((1, OURS), (2, OTHERS), (3, NO_UID)):
        folder = tmp_path / str(generation) / "checkpoints"
        folder.mkdir(parents=True)
        if uid:
            trainer_folder.mark(folder.parent, uid)
        path = store.write(folder, generation, 1, STATE, 1, uid=uid).path
        copies.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copies)  # as a user does who wants a new trainer to continue from it
        with h5py.File(path) as file:
            assert file.attrs.get("trainer_uid", "") == uid
    skipped: dict[str, str] = {}
    trainer_folder.mark(copies.parent, OURS)
    loaded = store.load_newest(copies, 9, lambda path, reason: skipped.update({path.name: reason}), OURS)
    assert loaded is not None
    assert loaded.generation == 1
    assert skipped == {
        "g000003-s00000001.h5": "it holds no trainer's uid",
        "g000002-s00000001.h5": f"it holds the state of another trainer ({OTHERS})",
    }
    assert [store.load(path).generation for path in sorted(copies.glob("*.h5"))] == [1, 2, 3]


@pytest.mark.parametrize("owner", [OTHERS, NO_UID])
def test_nothing_is_written_to_the_folder_of_another_trainer_or_to_one_that_was_taken_away(
    tmp_path: Path, owner: TrainerUid
) -> None:
    folder = tmp_path / "t1" / "checkpoints"
    if owner:
        folder.mkdir(parents=True)
        trainer_folder.mark(folder.parent, owner)
    for write in (
        lambda: store.write(folder, 1, 1, STATE, 1, uid=OURS),
        lambda: store.write_part(folder, 1, 1, 0, 2, STATE, uid=OURS),
    ):
        with pytest.raises(CheckpointError, match="cannot use"):
            write()
    assert list(tmp_path.rglob("*.h5")) == []
    assert folder.exists() == bool(owner), "what was taken away is not made again"


def test_what_is_known_of_a_next_step_is_not_written_to_another_trainers_folder(tmp_path: Path) -> None:
    trainer_folder.mark(tmp_path, OTHERS)
    with pytest.raises(CheckpointError, match="another trainer"):
        store.write_next_step(tmp_path / "checkpoints", 1, 1, b"mine", OURS)


def test_an_index_takes_no_part_of_another_trainer(tmp_path: Path) -> None:
    for uid, part in ((OURS, 0), (OTHERS, 1)):
        trainer_folder.mark(tmp_path, uid)
        store.write_part(tmp_path / "checkpoints", 1, 1, part, 2, STATE, uid=uid)
    trainer_folder.mark(tmp_path, OURS)
    with pytest.raises(CheckpointError, match=r"part1of2\.h5: it holds the state of another trainer"):
        store.write_index(tmp_path / "checkpoints", 1, 1, 2, 1, uid=OURS)
