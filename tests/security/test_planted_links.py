"""Outputs in a folder where another user may write: a link that he planted leads nowhere."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
import torch

from pilot.checkpoint import store
from pilot.checkpoint.export import export as export_checkpoint
from pilot.cli.show import write_page
from pilot.core.errors import UserError
from pilot.core.ids import NodeId
from pilot.host.output_files import output_folder, write_output
from pilot.research.traces.changes import Change, write_changes
from pilot.research.traces.record import record as record_trace
from pilot.research.traces.trace_plots import plot_trace
from tests.security.second_user import SecondUser

CHANGES = [Change(0.0, (NodeId("a"),), ()), Change(9.0, (), (NodeId("a"),))]


def export(path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        written = store.write(Path(folder), 1, 1, {"w": torch.zeros(2)}, kept=1)
        export_checkpoint(written.path, path)


def make_folder(path: Path) -> None:
    with output_folder(path) as folder:
        (folder / "file").touch()


def record(path: Path) -> None:
    ended = Event()
    ended.set()
    record_trace(path, set, 1.0, ended, warn=print)


WRITERS: list[tuple[str, Callable[[Path], object]]] = [
    ("page.html", lambda path: write_output(path, b"new")),
    ("trace.csv", lambda path: write_changes(path, CHANGES)),
    ("trace.png", lambda path: plot_trace(path, CHANGES)),
    ("w.pt", export),
    ("w.safetensors", export),
    ("folder", make_folder),
    ("new.csv", record),
]


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_a_planted_link_is_not_followed(
    tmp_path: Path, open_folder: Path, attacker: SecondUser, name: str, write: Callable[[Path], object]
) -> None:
    (mine := tmp_path / f"mine-{name}").write_text("mine")
    target = tmp_path / "made" if name.startswith("new") else mine
    assert attacker.sh(f"ln -s {target} {open_folder / name}; ln -s {tmp_path} {open_folder / 'out'}").returncode == 0
    for path, link in ((open_folder / name, name), (open_folder / "out" / f"new-{name}", "out")):
        with pytest.raises(
            UserError, match=rf"cannot write {path}: {link} is a link in {open_folder}, where others may"
        ):
            write(path)
    assert mine.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [mine]


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_a_link_in_a_folder_of_ours_is_followed(tmp_path: Path, name: str, write: Callable[[Path], object]) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    (tmp_path / "real" / name).symlink_to(tmp_path / "out" / f"there-{name}")
    write(tmp_path / "out" / ".." / "out" / name)
    assert {path.name: path.is_symlink() for path in (tmp_path / "real").iterdir()} == {
        name: True,
        f"there-{name}": False,
    }


def test_links_that_lead_nowhere_and_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for path, why in ((tmp_path / "loop", "Too many levels"), (Path("/"), "Is a directory"), (tmp_path, "Is a direc")):
        with pytest.raises(UserError, match=f"cannot write {path}: {why}"):
            write_output(path, b"")


def test_a_report_in_a_foreign_folder_spares_the_users_own_file(
    tmp_path: Path, open_folder: Path, attacker: SecondUser, capsys: pytest.CaptureFixture[str]
) -> None:
    (mine := tmp_path / "mine").write_text("mine")
    assert attacker.sh(f"ln -s {mine} {open_folder}/report.html").returncode == 0
    with pytest.raises(UserError, match="others may write"):
        write_page(open_folder / "report.html", "<html>")
    assert mine.read_text() == "mine"
    assert not capsys.readouterr().out


def test_standard_output_is_written_to() -> None:
    write = "write_output(Path('/dev/stdout'), b'x')"
    program = f"from pathlib import Path; from pilot.host.output_files import write_output; {write}"
    assert subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE).stdout == b"x"
