"""``torch.distributed.checkpoint`` loads exported checkpoints, as if PyTorch had saved the model and its optimizers."""

from __future__ import annotations

import errno
import os
import stat
import tracemalloc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import multiprocessing, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, AdamW, Optimizer

from pilot.checkpoint import rawio, reader, store
from pilot.checkpoint.dcp import export
from pilot.checkpoint.export import describe
from pilot.cli.main import run
from pilot.host.files import umask
from pilot.train.state.stepper import LearningRate, Optimizers
from pilot.train.state.training import Models, Training
from tests.unit.checkpoint import states

PARTS = pytest.mark.parametrize("parts", [0, 3])
WIDTH = 8


class Net(nn.Module):
    """A model with a tied weight, a frozen part, buffers, and numbers in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
        self.tied = nn.Linear(WIDTH, WIDTH)
        self.tied.weight = self.first[0].weight
        self.frozen = nn.Linear(WIDTH, 3).requires_grad_(False)
        self.last = nn.Linear(3, 1, dtype=torch.bfloat16)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.frozen(self.tied(self.first(inputs)))
        output: torch.Tensor = self.last(hidden.bfloat16())
        return output


def new(seed: int) -> tuple[Net, AdamW]:
    """A model and AdamW with two groups."""
    torch.manual_seed(seed)
    net = Net()
    groups: list[dict[str, Any]] = [
        {"params": list(net.first.parameters()), "lr": 0.02},
        {"params": [net.tied.bias, *net.last.parameters()]},
    ]
    return net, AdamW(groups, lr=0.01)


def step(model: nn.Module, *optimizers: Optimizer) -> None:
    torch.manual_seed(9)
    model(torch.randn(4, WIDTH)).float().square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def saved(folder: Path, model: Models, optimizers: Optimizers, parts: int = 0) -> Path:
    """The checkpoint of a session with these."""
    state = Training(model, optimizers, None, None, LearningRate("none")).capture()
    return states.written(folder / "checkpoints", 1, state, parts)


def load_into(folder: Path, model: nn.Module, *optimizers: Optimizer) -> None:
    """What a plain PyTorch script does."""
    models, optims = get_state_dict(model, optimizers)
    state = {"model": models, "optim": optims}
    dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizers, model_state_dict=state["model"], optim_state_dict=state["optim"])


def described(folder: Path) -> tuple[Any, Any]:
    metadata = dcp.FileSystemReader(folder).read_metadata()
    return metadata.state_dict_metadata, metadata.planner_data


def assert_same(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert states.difference(dict(mine), dict(theirs)) is None


@PARTS
def test_a_new_model_and_its_optimizer_load_it_bit_for_bit(tmp_path: Path, parts: int) -> None:
    net, optimizer = new(1)
    step(net, optimizer)
    size = export(saved(tmp_path, net, optimizer, parts), tmp_path / "out")
    assert size == sum(file.stat().st_size for file in (tmp_path / "out").iterdir())
    other, others = new(2)
    load_into(tmp_path / "out", other, others)
    for _ in range(2):  # the second time after one more step
        assert_same(other.state_dict(), net.state_dict())
        assert_same(others.state_dict(), optimizer.state_dict())
        step(net, optimizer)
        step(other, others)


def test_it_has_what_pytorch_saves(tmp_path: Path) -> None:
    net, optimizer = new(1)
    step(net, optimizer)
    export(saved(tmp_path, net, optimizer), tmp_path / "out")
    models, optims = get_state_dict(net, optimizer)
    dcp.save({"model": models, "optim": optims}, checkpoint_id=tmp_path / "torch's", no_dist=True)
    assert described(tmp_path / "out") == described(tmp_path / "torch's")


def test_several_models_and_optimizers(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[dict[str, nn.Module], dict[str, Optimizer]]:
        torch.manual_seed(seed)
        models = {"one": nn.Linear(WIDTH, WIDTH), "two": nn.Linear(WIDTH, 1)}
        return models, {
            "a": SGD(models["one"].parameters(), lr=0.1, momentum=0.9),
            "b": AdamW(models["two"].parameters()),
        }

    def as_one(models: dict[str, nn.Module]) -> nn.ModuleDict:
        return nn.ModuleDict(models)

    models, optimizers = made(1)
    step(nn.Sequential(*models.values()), *optimizers.values())
    export(saved(tmp_path, models, optimizers), tmp_path / "out")
    others, their_optimizers = made(2)
    load_into(tmp_path / "out", as_one(others), *their_optimizers.values())
    assert_same(as_one(others).state_dict(), as_one(models).state_dict())
    for name, optimizer in optimizers.items():
        assert_same(their_optimizers[name].state_dict(), optimizer.state_dict())


def test_names_are_those_without_wrappers(tmp_path: Path) -> None:
    net, optimizer = new(1)
    step(net, optimizer)
    plain = saved(tmp_path / "plain", net, optimizer)
    net.tied = torch.compile(net.tied)  # type: ignore[assignment]  # in its place
    wrapped = saved(tmp_path / "wrapped", net, optimizer)
    assert any("_orig_mod" in row.name for row in describe(wrapped).datasets)
    for path in (plain, wrapped):
        export(path, path.parent / "out")
    assert described(wrapped.parent / "out") == described(plain.parent / "out")


def _load_sharded(rank: int, folder: Path, expected: dict[str, Any]) -> None:
    """One of two processes that hold a model's halves."""
    meeting = dist.FileStore(str(folder / "meeting"), 2)
    dist.init_process_group("gloo", store=meeting, rank=rank, world_size=2)
    net, _ = new(2)
    fully_shard(net)
    optimizer = AdamW([p for p in net.parameters() if p.requires_grad])
    load_into(folder / "out", net, optimizer)
    assert_same({name: tensor.full_tensor() for name, tensor in net.named_parameters()}, expected)  # type: ignore[attr-defined]  # of DTensor
    meeting.set(f"compared-{rank}", "")
    meeting.wait([f"compared-{other}" for other in range(2)])  # the other one may still be receiving what this one sent
    dist.destroy_process_group()


def test_a_sharded_model_loads_it(tmp_path: Path) -> None:
    net, _ = new(1)
    optimizer = AdamW([p for p in net.parameters() if p.requires_grad])
    step(net, optimizer)
    export(saved(tmp_path, net, optimizer, parts=2), tmp_path / "out")
    expected = {name: parameter.detach() for name, parameter in net.named_parameters()}
    multiprocessing.spawn(_load_sharded, (tmp_path, expected), nprocs=2)


def test_only_one_tensor_is_in_memory(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(6)))  # of 4 MiB each
    path = saved(tmp_path, model, SGD(model.parameters()), parts=2)
    export(path, tmp_path / "first")  # imports what torch.save needs
    tracemalloc.start()
    try:
        assert export(path, tmp_path / "out") > 6 * 2**22
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2**22 < peak < 1.8 * 2**22


def of_no_model(state: dict[str, Any]) -> None:
    del state["model"]


def of_no_session(state: dict[str, Any]) -> None:
    del state["trained"]


def bare(state: dict[str, Any]) -> None:
    state["trained"]["groups"][""][0][0] = "optimizer.0.0"


def twice(state: dict[str, Any]) -> None:
    state["trained"]["groups"][""][1][0] = state["trained"]["groups"][""][0][0]


def of_none(state: dict[str, Any]) -> None:
    state["optimizer"]["state"]["shared"] = torch.ones(2)


def odd(state: dict[str, Any]) -> None:
    state["trained"]["groups"][""][0].pop()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_no_model, "g000001-s00000001.h5 has no 'model'"),
        (of_no_session, "g000001-s00000001.h5 has no 'trained'"),
        (bare, "optimizer.0.0 is in an optimizer, but no parameter of a model"),
        (twice, "first.0.weight is in two optimizers"),
        (of_none, "shared is in an optimizer, but no parameter of a model"),
        (odd, "g000001-s00000001.h5: "),
    ],
)
def test_what_the_format_cannot_hold_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    net, optimizer = new(1)
    step(net, optimizer)
    state = Training(net, optimizer, None, None, LearningRate("none")).capture()
    change(state)
    path = store.write(tmp_path / "checkpoints", 1, 1, state, kept=1).path
    assert words in refused(capsys, path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoints"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run(["checkpoint", "export", *map(str, arguments), "--dcp"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


def test_the_output_is_new_and_in_a_folder_that_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(tmp_path, *new(1))
    output = tmp_path / "out"
    assert run(["checkpoint", "export", str(path.parent), str(output), "--dcp"]) == 0
    assert f"wrote {output} (" in capsys.readouterr().out
    assert stat.S_IMODE(output.stat().st_mode) == 0o777 & ~umask()
    before = (output / ".metadata").stat().st_mtime_ns
    (tmp_path / "file").touch()
    for there in (output, tmp_path / "file"):
        assert f"cannot write {there}: it exists already" in refused(capsys, path, there)
    assert (output / ".metadata").stat().st_mtime_ns == before
    assert "No such file or directory" in refused(capsys, path, tmp_path / "missing" / "out")
    assert "leave --only out" in refused(capsys, path, tmp_path / "new", "--only", "model")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["checkpoints", "file", "out"]


@PARTS
def test_of_a_damaged_checkpoint_nothing_is_left(
    tmp_path: Path, parts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved(tmp_path, *new(1), parts)
    damaged = sorted(path.parent.glob("*.h5"))[-1]
    with reader.opened(path) as (_, structure):
        pieces = [piece for share in structure.datasets.values() for piece in share.pieces if piece.stop]
        last = max(piece.offset for piece in pieces if piece.file in ("", damaged.name))
    content = bytearray(damaged.read_bytes())
    content[last] ^= 1
    damaged.write_bytes(content)
    assert store.verify(path)
    assert damaged.name in refused(capsys, path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoints"]


def test_a_checkpoint_that_cannot_be_read_is_not_taken_for_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read_at = rawio.read_at

    def failing(fd: int, into: Any, offset: int) -> str | None:
        if not isinstance(into, int) and len(into) == WIDTH * WIDTH * 4:  # a weight
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read_at(fd, into, offset)

    path = saved(tmp_path, *new(1))
    monkeypatch.setattr(rawio, "read_at", failing)
    assert f"{path.name}: Input/output error" in refused(capsys, path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoints"]


def test_a_full_disk_is_said_of_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = saved(tmp_path, *new(1))
    monkeypatch.setattr(torch, "save", full)
    assert f"cannot write {tmp_path / 'out'}: No space left on device" in refused(capsys, path, tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoints"]
