"""``pilot logs``: several processes' logs as one."""

from __future__ import annotations

import io
import os
import random
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from pilot.cli import logs
from pilot.cli.logs import command
from pilot.cli.main import run
from pilot.client.merged_logs import LineStarts, MergedLogs, newest, text_of
from pilot.rundir import log_marks
from pilot.rundir.log_marks import BEGINS, NO_RANK, times_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "trainers" / "vit" / "logs"
    found.mkdir(parents=True)
    return found


def write(log: Path, *parts: tuple[float, int, str]) -> None:
    """At these times, by these ranks."""
    with log.open("a") as file, times_of(log).open("a") as times:
        for unix_s, rank, text in parts:
            times.write(f"{unix_s} {file.tell()} {rank}\n")
            file.write(text)


def shown(folder: Path, *options: str) -> list[str]:
    done = CliRunner().invoke(command, ["vit", "--run-dir", str(folder.parents[2]), *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def errors(folder: Path, *options: str) -> str:
    return CliRunner().invoke(command, ["vit", "--run-dir", str(folder.parents[2]), *options]).stderr


def test_that_nothing_was_printed_is_reported(folder: Path) -> None:
    write(folder / "a.log", (1, BEGINS, ""))
    assert (shown(folder), errors(folder), errors(folder, "--tail", "0")) == ([], "no output so far\n", "")


def test_output_of_other_ranks_only_is_reported(folder: Path) -> None:
    write(folder / "a.log", (1, 1, "refused\n"))
    assert (shown(folder), errors(folder)) == ([], "no output of rank 0 so far; --all shows every rank\n")
    assert (shown(folder, "--all"), errors(folder, "--all")) == (["a[1]: refused"], "")


def test_rank_0_is_followed_from_node_to_node_and_who_never_trained_is_shown(folder: Path) -> None:
    write(folder / "a.log", (1, BEGINS, "imports a\n"), (3, 0, "epoch 0\n"), (5, 1, "I am rank 1 now\n"))
    write(folder / "b.log", (2, BEGINS, "imports b\n"), (3.5, 1, "epoch 0 too\n"), (6, 0, "epoch 1\n"))
    write(
        folder / "c.log", (4, BEGINS, "Traceback\n"), (4.6, NO_RANK, "OSError\n"), (4.9, BEGINS, "again\n"), (8, 2, "")
    )
    assert shown(folder) == [
        "a[0]: imports a", "a[0]: epoch 0", "c[-]: Traceback", "c[-]: OSError", "b[0]: epoch 1"
    ]  # fmt: skip
    assert [line[:4] for line in shown(folder, "--all")] == [
        "a[0]", "b[1]", "a[0]", "b[1]", "c[-]", "c[-]", "c[2]", "a[1]", "b[0]"
    ]  # fmt: skip
    assert shown(folder, "--tail", "2") == ["c[-]: OSError", "b[0]: epoch 1"]
    assert shown(folder, "--tail", "0") == []


def test_each_line_begins_with_the_short_name_of_its_node(folder: Path) -> None:
    write(folder / "n7.pilot-1000-fu6bbncn3cnmni6l.0.log", (1, 0, "n7.pilot-1000-fu6bbncn3cnmni6l\n"))
    assert shown(folder) == ["n7.fu6b.0[0]: n7.pilot-1000-fu6bbncn3cnmni6l"], "a script's own output is not touched"


def test_since_a_moment(folder: Path) -> None:
    now_s = time.time()
    write(folder / "a.log", (now_s - 7200, 0, "old\n"), (now_s - 60, 0, "new\n"))
    assert shown(folder, "--since", "10m") == ["a[0]: new"]
    assert shown(folder, "--since", "3h") == ["a[0]: old", "a[0]: new"]
    assert shown(folder, "--since", "2001-02-03 04:05") == ["a[0]: old", "a[0]: new"]
    assert (shown(folder, "--since", "1s"), errors(folder, "--since", "1s")) == ([], "no output since then\n")
    refused = CliRunner().invoke(command, ["vit", "--since", "yesterday"])
    assert refused.exit_code == 2 and "is not a time; use 10m" in refused.stderr


def test_lines_stay_whole_and_a_rotated_log_is_one_with_what_follows(folder: Path) -> None:
    log = folder / "a.log"
    write(log, (1, 0, "one\ntw"), (2, 0, "o\nthree\n"))
    log_marks.copy_and_empty(log)
    write(log, (3, 0, "four\n"), (4, 0, "fi"))
    assert shown(folder) == [f"a[0]: {word}" for word in ("one", "two", "three", "four", "fi")]
    assert shown(folder, "--tail", "3") == [f"a[0]: {word}" for word in ("three", "four", "fi")]


def test_new_output_is_printed_once_also_over_a_rotation(folder: Path) -> None:
    log = folder / "a.log"
    write(log, (1, 0, "one\ntw"))
    merged = MergedLogs(folder, whole_lines=True)

    def new() -> bytes:
        return b"".join(map(text_of, merged.grown()))

    assert new() == b"one\n"
    write(log, (2, 0, "o\n"))
    assert (new(), new()) == (b"two\n", b"")
    write(log, (3, 0, "three\n"))
    log_marks.copy_and_empty(log)
    write(log, (4, 0, "4\n"))
    assert new() == b"three\n4\n"
    write(folder / "b.log", (5, 0, "who is that\n"))
    assert new() == b"who is that\n"


def test_a_process_marks_its_log_also_a_rotated_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_marks, "PERIOD_S", 0.0)
    log = tmp_path / "a.log"
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    folder = os.open(tmp_path, os.O_RDONLY)
    marker = log_marks.mark_log(descriptor, folder)
    try:
        marker.about_to_write()
        os.write(descriptor, b"imports\n")
        log_marks.now_rank(3)
        os.write(descriptor, b"epoch 0\n")
        marker.about_to_write()
        log_marks.copy_and_empty(log)
        marker.about_to_write()
        os.write(descriptor, b"5\n")
        assert [(m.offset, m.rank) for m in log_marks.marks(tmp_path / "a.log.1")[0]] == [
            (0, BEGINS), (0, NO_RANK), (8, 3), (16, 3)
        ]  # fmt: skip
        assert [(m.offset, m.rank) for m in log_marks.marks(log)[0]] == [(0, 3)]
        assert [piece.rank for piece in MergedLogs(tmp_path, every_rank=True).grown()] == [3, 3, 3]
    finally:
        log_marks._marker = None
        os.close(descriptor)


def test_a_log_without_marks_or_with_nonsense_for_marks_is_shown(folder: Path) -> None:
    (folder / "a.log").write_text("one\ntwo\n")
    (folder / "b.log").write_text("three\n")
    times_of(folder / "b.log").write_bytes(b"x y z\n1e999 -5 0\n\xff\nnan 3 0\n5 999999 0\n")
    assert sorted(line[6:] for line in shown(folder)) == ["one", "three", "two"]
    pieces = MergedLogs(folder).grown()
    assert [text for _, text in newest(pieces, 10)] and logs.newest_lines(folder.parents[2], "vit", 9)


class Screen(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_colours_and_progress_bars_and_no_other_control_sequence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harmful = "\x1b]52;c;cm0=\x07\x1b]0;title\x07\x1b[2A\x1b[2K\x9b5n\x08"
    text = f"\x1b[1;31mred\x1b[0m\tplain\r\n{harmful}\n10%\r20%\n"
    write(folder / "a.log", (1, 0, text))
    screen = Screen(out := io.BytesIO())
    monkeypatch.setattr(sys, "stdout", screen)
    assert run(["logs", "vit", "--run-dir", str(folder.parents[2])]) == 0
    first, second, third = out.getvalue().decode().removesuffix("\n").split("\n")
    assert first == "a[0]: \x1b[1;31mred\x1b[0m\tplain\x1b[0m", "what it changed ends with its line"
    assert second.isprintable() and "]52;c;cm0=" in second
    assert third == "a[0]: 10%\ra[0]: 20%"
    piped = CliRunner().invoke(command, ["vit", "--run-dir", str(folder.parents[2])]).stdout_bytes
    assert harmful.encode() in piped, "a file or program gets it as it is"
    assert all(line.isprintable() for line in logs.newest_lines(folder.parents[2], "vit", 9) if "\t" not in line)


class Counted(io.BytesIO):
    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        block = super().read(size)
        self.read_bytes += len(block)
        return block


@pytest.mark.parametrize("order", ["up", "down", "any"])
def test_a_line_to_which_a_progress_bar_adds_for_hours_is_searched_once(order: str) -> None:
    drawn = random.Random(order)
    content = b"first\n" + b"\r 12%" * 100_000 + b"\nthen\n" + b"\r 99%" * 100_000
    file, starts, offsets = Counted(content), LineStarts(), [drawn.randrange(len(content)) for _ in range(2000)]
    offsets = {"up": sorted(offsets), "down": sorted(offsets, reverse=True), "any": offsets[:10]}[order]
    for offset in offsets:
        ended = content.find(b"\n", max(0, offset - 1))
        expected = 0 if offset == 0 else len(content) if ended < 0 else ended + 1
        assert starts.first_from(file, offset) == expected
    assert order == "any" or file.read_bytes < 4 * len(content)
