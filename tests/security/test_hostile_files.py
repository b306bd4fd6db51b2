"""Files that once did harm: now each is refused in one line, or the one before it is used."""

from __future__ import annotations

import gzip
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pilot.checkpoint import store
from pilot.cli.main import run
from pilot.core.errors import CheckpointError, PilotError, UserError
from pilot.host import files
from pilot.research.traces.changes import read_changes
from pilot.research.traces.sacct import import_sacct
from pilot.research.traces.swf import import_swf
from pilot.research.traces.text_files import read_lines
from pilot.rundir import journal
from pilot.service.settings import load_objective
from pilot.site.hostlist import expand
from pilot.site.site_files import load_site, site_mistakes
from pilot.submission.submission import read_curve
from tests.security.fuzz.targets import journals
from tests.security.fuzz.targets.checkpoints import CRAFTED, crafted
from tests.security.special_files import SPECIAL, put


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """A directory with two checkpoints of different states."""
    for step in (1, 2):
        store.write(tmp_path, 1, step, {"w": torch.full((300, 300), float(step)), "n": step}, kept=2)
    return tmp_path


def newest(directory: Path) -> store.Loaded:
    loaded = store.load_newest(directory, granted=9)
    assert loaded is not None
    return loaded


def forge(directory: Path, change: Callable[[Any], Any]) -> Path:
    """Change the structure of the newest checkpoint; its checksum is valid."""
    path = directory / "g000001-s00000002.h5"
    path.write_bytes(crafted(path.read_bytes(), change))
    return path


def objects(row: Any) -> None:
    row[0], row[1] = "|O", [45000]
    row[2][0][2] = 45000


@pytest.mark.parametrize(
    "change",
    [lambda row: row[2].clear(), lambda row: row.__setitem__(1, [600, 300]), objects],
    ids=["no pieces: memory as it was", "rows that no piece covers", "an array of objects"],
)
def test_a_dataset_that_is_not_all_there_is_not_loaded(checkpoints: Path, change: Callable[[Any], None]) -> None:
    def changed(about: Any) -> Any:
        change(about["datasets"]["w"])
        return about

    path = forge(checkpoints, changed)
    loaded = newest(checkpoints)
    assert (loaded.step, loaded.skipped[0][0]) == (1, path)


@pytest.mark.parametrize("number", range(len(CRAFTED)))
def test_a_crafted_checkpoint_never_stops_the_search_for_one_that_is_whole(checkpoints: Path, number: int) -> None:
    path = forge(checkpoints, CRAFTED[number])
    assert newest(checkpoints).step in (1, 2)
    store.verify(path)


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_no_checkpoint(checkpoints: Path, kind: str) -> None:
    put(checkpoints / "g000002-s00000003.h5", kind)
    assert newest(checkpoints).step == 2


def test_a_part_is_a_file_beside_its_index_and_nothing_else(tmp_path: Path) -> None:
    state = {"w": torch.rand(600, 600)}
    store.write(tmp_path, 1, 1, state, kept=9)
    for part in range(2):
        store.write_part(tmp_path, 1, 2, part, 2, state)
    store.write_index(tmp_path, 1, 2, 2, kept=9)
    os.mkfifo(tmp_path / "fifo")

    def elsewhere(about: Any) -> Any:
        about["datasets"]["w"][2][0][0] = "fifo"
        return about

    forge(tmp_path, elsewhere)
    assert newest(tmp_path).step == 1


def test_parts_that_are_not_all_of_it_make_no_checkpoint(tmp_path: Path) -> None:
    state = {"w": torch.rand(700, 700)}
    for part in range(2):
        store.write_part(tmp_path, 1, 2, part, 2, state)
    path = tmp_path / "g000001-s00000002.part1of2.h5"
    path.write_bytes(crafted(path.read_bytes(), lambda about: {**about, "datasets": {}}))
    with pytest.raises(CheckpointError, match="no part has"):
        store.write_index(tmp_path, 1, 2, 2, kept=1)


# --- special files ------------------------------------------------------------------------


READERS: list[Callable[[Path], Any]] = [
    read_curve,
    read_changes,
    import_sacct,
    import_swf,
    journal.read,
    lambda path: load_site(str(path)),
    lambda path: files.read_regular(path, 100),
]


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("read", READERS)
def test_nobody_waits_for_a_fifo_or_reads_a_device(read: Callable[[Path], Any], kind: str, tmp_path: Path) -> None:
    with pytest.raises((PilotError, OSError)):
        read(put(tmp_path / "x.py", kind))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="larger than"):
        files.read_regular(put(tmp_path / "file", "sparse"), 1000)


# --- traces ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["n[1-99999999]", "n[1-9999][1-9999]", "a[1-999999],b[1-999999]", f"n[1-{'9' * 5000}]"]
)
def test_a_list_of_more_nodes_than_there_are_is_refused_before_it_is_made(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"more than|not a range"):
        expand(text)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KB


def test_a_log_of_many_large_lists_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "log").write_text(
        "JobID|Start|End|NodeList\n"
        + "".join(f"{n}|2026-02-10T10:00:00|2026-02-10T11:00:00|x{n}-[1-400000]\n" for n in range(4))
    )
    with pytest.raises(UserError, match="too many"):
        import_sacct(path)


def test_a_machine_of_billions_of_nodes_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "log.swf").write_text("; MaxNodes: 99999999999\n")
    with pytest.raises(UserError, match="no machine"):
        import_swf(path)


@pytest.mark.parametrize("piece", [b"\n", b" "])
def test_a_gzip_bomb_is_refused(tmp_path: Path, piece: bytes) -> None:
    (path := tmp_path / "t.gz").write_bytes(gzip.compress(piece * (1 << 20)) * 100)
    with pytest.raises(UserError, match=r"times as large|longer than"):
        for _ in read_lines(path):
            pass


def test_a_trace_that_compresses_well_is_read(tmp_path: Path) -> None:
    lines = [f"{n},n{n % 100},join\n" for n in range(200_000)]
    (path := tmp_path / "t.gz").write_bytes(gzip.compress("".join(lines).encode()))
    assert list(read_lines(path)) == lines


# --- journals and site files ------------------------------------------------------------------------


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal whose objective is in a foreign module in the current folder."""
    (tmp_path / "somebodys.py").write_text("def f(trainer, nodes):\n    return float(nodes)\n")
    (path := tmp_path / "journal.jsonl").write_bytes(b"".join(journals.lines("somebodys:f")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    return path


def test_a_journal_names_no_code_that_runs(foreign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--journal", str(foreign)]) == 2
    assert "--objective somebodys:f" in capsys.readouterr().err
    assert "somebodys" not in sys.modules


def test_it_runs_where_the_user_names_it_too(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "somebodys", raising=False)
    assert run(["replay", "--journal", str(foreign), "--objective", "somebodys:f"]) in (0, 1)
    assert sys.modules.pop("somebodys").__file__ == str(foreign.parent / "somebodys.py")


@pytest.mark.parametrize("name", ["json:loads", "json:nothing", "nothing:f", ":", "os:getpid"])
def test_an_objective_is_tried_before_it_has_to_decide(name: str) -> None:
    with pytest.raises(UserError):
        load_objective(name)


@pytest.mark.parametrize(
    "text",
    [
        "raise BaseException",
        "class E(Exception):\n    __str__ = None\nraise E",
        'site = Site(name="x", scheduler="local", port=10**5000)',
        "raise GeneratorExit",
        "Site(name='y', scheduler='local', second_hand=[5])",
        'x = "\\d"\nraise ValueError("a\\nb")',
    ],
)
def test_a_site_file_may_raise_what_it_likes(tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "x.py").write_text(f"from pilot.site.site import Site\n{text}\n")
    (mistake,) = site_mistakes(str(path))
    assert mistake.isprintable()
    assert capfd.readouterr() == ("", "")


def test_what_is_shown_of_an_error_is_one_printable_line() -> None:
    shown = str(UserError("a\nb\x1b[2J\ud800" + "x" * 100_000))
    assert shown.startswith("a b\\x1b[2J\\ud800x")
    assert shown.isprintable()
    assert len(shown) < 2000


def test_no_object_is_made_of_numbers_in_a_file() -> None:
    from pilot.checkpoint import dtypes

    for name in ("|O", "O", "|O8", "<f3", "<f4,<f4", "(2,)<f4", "torch.load", "float", "V"):
        with pytest.raises((ValueError, TypeError)):
            dtypes.check(name)
    for name in ("<f4", "|b1", "<M8[ns]", "<M8[D]", "<m8[25s]", "<m8", "<U5", "|S3", "torch.bfloat16", "<c16", "|V7"):
        dtypes.check(name)
    assert np.dtype("|O").hasobject
