"""Which sharded models are refused, each in one line. (Those that train:
``tests/equivalence/test_node_fabrics.py``.)
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import pilot.train
from pilot.checkpoint import shards
from pilot.core.errors import UserError
from pilot.train.node.node_group import node_mesh
from pilot.train.state.sharding import Sharding, _groups_of, sharding_of
from pilot.train.state.stepper import Steppers
from pilot.train.steps.alarm import Alarm
from tests.equivalence.loops import Loop


@pytest.fixture
def mesh() -> Iterator[Any]:
    """For a process that has its node to itself."""
    yield node_mesh()
    dist.destroy_process_group()


def sharded(mesh: Any, *, whole: bool = True, **options: Any) -> nn.Sequential:
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    fully_shard(model[0], mesh=mesh, **options)
    if whole:
        fully_shard(model, mesh=mesh, **options)
    return model


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def looped(model: nn.Module, samples: int = 4, **loader: Any) -> Loop:
    data = TensorDataset(torch.arange(4.0 * samples).view(samples, 4))
    return Loop(model=model, data=data, loader=loader)


def test_a_model_is_sharded_or_not(mesh: Any) -> None:
    plain, model = nn.Linear(2, 2), sharded(mesh)
    assert sharding_of(plain, Steppers(sgd(plain)), 1) is None
    assert isinstance(sharding_of(model, Steppers([sgd(model)]), 1), Sharding)


def test_a_model_that_cannot_be_trained_is_refused_with_the_reason(mesh: Any) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    model = sharded(mesh)
    offloaded = sharded(mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    for its, steppers, per_node, line in [
        (model, Steppers(sgd(model)), 2, "is not sharded by rows over the 2 processes of its replica"),
        (model, Steppers({"one": sgd(model)}), 1, "pass a list, not a dict"),
        (model, Steppers(sgd(model), None, torch.amp.GradScaler("cpu")), 1, "cannot be combined with a loss scaler"),
        (offloaded, Steppers(sgd(offloaded)), 1, "CPU offload"),
    ]:
        with pytest.raises(UserError, match=line):
            sharding_of(its, steppers, per_node)


@pytest.mark.parametrize(("samples", "last"), [(4, False), (3, True)])
def test_gradients_that_wait_for_a_batch_that_weighs_less_are_refused(mesh: Any, samples: int, *, last: bool) -> None:
    loop = looped(sharded(mesh), samples, micro_batch_size=2)
    with pytest.raises(UserError, match=r"set_requires_gradient_sync\(False\) leaves a batch's gradients"):
        for number, batch in enumerate(loop.batches()):
            loop.model.set_requires_gradient_sync(number == 1 and last)
            loop.step(*batch)


def test_gradients_that_wait_for_an_equal_batch_count_the_same(mesh: Any) -> None:
    trained = []
    for synced in (True, False):
        torch.manual_seed(1)
        loop = looped(sharded(mesh), micro_batch_size=2)
        for number, (inputs,) in enumerate(loop.batches(2)):
            loop.model.set_requires_gradient_sync(synced or number % 2 == 1)
            if number % 2 == 0:
                loop.model.zero_grad()
            loop.loss(inputs).backward()
            loop.session.step()
        trained.append([parameter.full_tensor() for parameter in loop.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*trained, strict=True))


@pytest.mark.parametrize(("backwards", "line"), [(1, "zero_grad is missing"), (2, "call backward once per batch")])
def test_an_addition_to_a_gradient_that_was_taken_is_refused(mesh: Any, backwards: int, line: str) -> None:
    loop = looped(sharded(mesh), global_batch_size=2)
    with pytest.raises(UserError, match=line):
        for (inputs,) in loop.batches():
            for _ in range(backwards):
                loop.loss(inputs).backward()
            loop.session.step()


def test_a_tensor_that_is_divided_otherwise_cannot_be_stored(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate

    loop = looped(sharded(mesh))
    loop.session.state["mean"] = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
    with pytest.raises(UserError, match=r"session\.state\['mean'\] is a DTensor that is not divided by rows"):
        next(loop.session.epochs(1))


def test_a_trained_parameter_that_is_not_sharded_is_refused(mesh: Any) -> None:
    partly = sharded(mesh, whole=False)
    with pytest.raises(UserError, match=r"parameter 1\.weight is trained but not sharded, while others are"):
        looped(partly)
    model, temperature = sharded(mesh), nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match=r"parameter optimizer\.0\.4 is trained but not sharded.* part of the model"):
        pilot.train.session(model, torch.optim.SGD([*model.parameters(), temperature], lr=0.1))
    partly[1].requires_grad_(requires_grad=False)
    loop = looped(partly)
    with pytest.raises(UserError, match=r"parameter 1\.weight is trained but not sharded"):
        loop.train(first=lambda epoch: partly[1].requires_grad_(epoch > 0))


@pytest.mark.parametrize("buffers", [(1.0, 1.0), (1.0, 2.0)])
def test_tensors_that_are_not_sharded_are_compared_in_the_node(mesh: Any, buffers: tuple[float, float]) -> None:
    """By processes of a node that hold other shards of the same parameter."""
    words: list[int] = []
    ties: Any = SimpleNamespace(exchange=lambda word: [words.append(word), word][1:])
    alarms = []
    for number, buffer in enumerate(buffers):
        model = sharded(mesh)
        model.register_buffer("mean", torch.tensor(buffer))
        with torch.no_grad():
            shards.local_of(model[0].weight).fill_(number)
            for name in ("0.bias", "1.weight", "1.bias"):
                shards.local_of(dict(model.named_parameters())[name]).zero_()
        session = pilot.train.session(model, sgd(model))
        sharding: Any = session._training.sharding
        sharding.size = 2
        alarms.append(Alarm(session._training, ties))
    group: Any = SimpleNamespace(generation=1, size=4)
    for alarm in alarms:
        alarm.checksum(0, group)
    ties.exchange = lambda _word: words
    numbers = {alarm.checksum(1, group) for alarm in alarms}
    assert len(numbers) == (1 if buffers[0] == buffers[1] else 2)


def test_a_default_group_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch, mesh: Any) -> None:
    monkeypatch.setenv("PILOT_LOCAL_SIZE", "2")
    with pytest.raises(UserError, match=r"the script has made a process group of 1, .* over 2 .* leave"):
        node_mesh()
    assert mesh.size() == 1


def test_another_version_of_torch_is_refused() -> None:
    module = SimpleNamespace(_get_fsdp_state=lambda: SimpleNamespace(_fsdp_param_group=None))
    with pytest.raises(UserError, match=r"sharded models need another torch than .*: install 2\.13"):
        _groups_of(module)
