"""Others can read our files: h5py without our code, HDF5's own h5dump, and PyTorch and safetensors after an export."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import OrderedDict
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pilot.checkpoint import store
from pilot.cli.main import run
from pilot.cli.options import JSON_FORMAT
from tests.unit.checkpoint import states

STATE: dict[str, Any] = {
    "model": {"conv.weight": torch.arange(6.0).reshape(2, 3), "half": torch.tensor([1.5, -2.0]).bfloat16()},
    "optimizer": {"state": {0: {"exp_avg": torch.ones(3), "step": torch.tensor(7)}}, "lr": float("inf")},
    "flags": torch.tensor([True, False]),
    "random": np.arange(4, dtype=np.uint32),
    "epoch": 3,
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    state = {**STATE, "tied": STATE["model"]["conv.weight"]}
    return store.write(tmp_path, 3, 1200, state, kept=1).path


def test_plain_h5py(path: Path) -> None:
    with h5py.File(path, "r") as file:
        assert file["model/conv.weight"][...].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file["tied"][...].tolist() == [[0, 1, 2], [3, 4, 5]]
        assert file["model/half"][...].tolist() == [1.5, -2.0]
        assert file["optimizer/state/0/step"][()] == 7
        assert file["flags"][...].tolist() == [True, False]
        assert file["flags"].dtype == bool
        assert (file["checkpoint/generation"][()], file["checkpoint/step"][()]) == (3, 1200)
        structure = json.loads(file["checkpoint/structure"][()])
        assert ["epoch", 3] in structure["tree"]["dict"]
        assert {"format": file.attrs["format"], "format_version": file.attrs["format_version"]} == {
            "format": "pilot checkpoint",
            "format_version": 2,
        }


@pytest.mark.skipif(shutil.which("h5dump") is None, reason="h5dump is not installed (package hdf5-tools)")
def test_h5dump(path: Path, tmp_path: Path) -> None:
    def dumped(name: str, file: Path) -> str:
        return subprocess.run(["h5dump", "-d", name, file], capture_output=True, text=True, check=True).stdout

    for name, words in {"/model/half": "1.5, -2", "/model/conv.weight": "0, 1, 2", "/flags": "TRUE, FALSE"}.items():
        assert words in dumped(name, path)
    for part in range(2):
        store.write_part(tmp_path, 3, 1201, part, 2, STATE)
    index = store.write_index(tmp_path, 3, 1201, 2, kept=1).path
    dumped = subprocess.run(
        ["h5dump", "-d", "/optimizer/state/0/step", index], capture_output=True, text=True, check=True
    )
    assert "(0): 7" in dumped.stdout


def _pilot(*arguments: str | Path) -> int:
    return run(["checkpoint", *map(str, arguments)])


def test_export_to_pt(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _pilot("export", path, tmp_path / "all.pt") == 0
    loaded = torch.load(tmp_path / "all.pt")
    assert loaded["epoch"] == 3
    assert torch.equal(loaded["model"]["half"], STATE["model"]["half"])
    assert _pilot("export", tmp_path, tmp_path / "model.pt", "--only", "model") == 0
    assert list(torch.load(tmp_path / "model.pt")) == ["conv.weight", "half"]
    assert "model.pt" in capsys.readouterr().out


def test_a_state_of_every_kind_is_read_by_torch_load_as_it_is(tmp_path: Path) -> None:
    kinds = {
        "big-endian": np.arange(3, dtype=">f8"),
        "text": np.array([["a", "b"]]),
        "long double": np.ones(2, np.longdouble),
        "scalar": np.longdouble(0.5),
        "times": np.array(["2026-01-02"], dtype="datetime64[D]"),
        "frozen": frozenset([1, 2]),
        "nested": [(np.arange(2), None), OrderedDict(a=2**130)],
    }
    path = store.write(tmp_path, 1, 1, states.trained() | kinds, kept=1).path
    assert _pilot("export", path, tmp_path / "all.pt") == 0
    loaded = torch.load(tmp_path / "all.pt")
    torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).load_state_dict(
        loaded["model"]
    )
    assert loaded["big-endian"].tolist() == [0.0, 1.0, 2.0]
    assert (loaded["text"], loaded["times"], loaded["scalar"]) == ([["a", "b"]], ["2026-01-02"], 0.5)
    assert loaded["long double"].tolist() == [1.0, 1.0]
    assert loaded["frozen"] == {1, 2}
    assert loaded["nested"][1] == {"a": 2**130}
    assert loaded["nested"][0][0].tolist() == [0, 1]


def test_export_to_safetensors(path: Path, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    assert _pilot("export", path, tmp_path / "model.safetensors", "--only", "model") == 0
    loaded = safetensors.load_file(tmp_path / "model.safetensors")
    assert sorted(loaded) == ["conv.weight", "half"]
    assert loaded["half"].dtype is torch.bfloat16
    assert _pilot("export", path, tmp_path / "all.safetensors") == 0
    assert "tied" in safetensors.load_file(tmp_path / "all.safetensors")


def test_ls_show_and_verify_as_text_and_as_json(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*arguments: str | Path) -> str:
        assert _pilot(*arguments) == 0
        return capsys.readouterr().out

    assert "generation 3  step 1200" in printed("ls", tmp_path)
    (row,) = json.loads(printed("ls", tmp_path, "--json"))["checkpoints"]
    assert (row["generation"], row["step"], row["bytes"]) == (3, 1200, path.stat().st_size)
    assert printed("verify", path) == f"{path}  ok\n"
    verified = json.loads(printed("verify", tmp_path, "--json"))
    row = {"path": str(path), "problems": [], "unreadable": False}
    assert verified == {"format": JSON_FORMAT, "checkpoints": [row]}
    shown = printed("show", tmp_path)
    assert "torch.bfloat16" in shown
    assert "tied  =  model/conv.weight" in shown
    described = json.loads(printed("show", path, "--json"))
    assert described["values"] == {"optimizer/lr": "inf", "epoch": 3}


def test_damage_ends_verify_with_1_and_is_shown_by_ls(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    assert _pilot("verify", path) == 1
    assert "the file is truncated" in capsys.readouterr().out
    assert _pilot("ls", path) == 2
    assert "the file is truncated" in capsys.readouterr().err
    assert _pilot("show", path) == 2
    assert _pilot("export", path, path.with_suffix(".pt")) == 2
    assert not path.with_suffix(".pt").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ls", "{dir}/missing"], "no such file"),
        (["ls", "{dir}/empty"], "no checkpoint in"),
        (["export", "{path}", "{dir}/x.onnx"], "unknown format; end the name in .pt or .safetensors"),
        (["export", "{path}", "{dir}/x.pt", "--only", "modle"], "has no 'modle'"),
        (["export", "{path}", "{dir}/x.safetensors", "--only", "epoch"], "no tensor"),
        (["export", "{path}", "{dir}/missing/x.pt"], "cannot write"),
        (["verify"], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(
    path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (path.parent / "empty").mkdir()
    assert _pilot(*(argument.format(dir=path.parent, path=path) for argument in arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert len(printed.err.splitlines()) == 1
