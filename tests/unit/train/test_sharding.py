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


def test_a_model_without_shards_is_no_sharded_one() -> None:
    model = nn.Linear(2, 2)
    assert sharding_of(model, Steppers(sgd(model)), 1) is None


def test_a_sharded_model_is_taken(mesh: Any) -> None:
    model = sharded(mesh)
    assert isinstance(sharding_of(model, Steppers([sgd(model)]), 1), Sharding)


def test_what_cannot_be_trained_is_refused_and_why(mesh: Any) -> None:
    from torch.distributed.fsdp import CPUOffloadPolicy

    model = sharded(mesh)
    with pytest.raises(UserError, match="is not sharded by rows over the 2 processes of its node"):
        sharding_of(model, Steppers(sgd(model)), 2)
    with pytest.raises(UserError, match="pass a list, not a dict"):
        sharding_of(model, Steppers({"one": sgd(model)}), 1)
    with pytest.raises(UserError, match="cannot be combined with a loss scaler"):
        sharding_of(model, Steppers(sgd(model), None, torch.amp.GradScaler("cpu")), 1)
    offloaded = sharded(mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
    with pytest.raises(UserError, match="CPU offload"):
        sharding_of(offloaded, Steppers(sgd(offloaded)), 1)


@pytest.mark.parametrize(("samples", "last"), [(4, False), (3, True)])
def test_gradients_that_wait_for_a_batch_that_weighs_less_are_refused(mesh: Any, samples: int, *, last: bool) -> None:
    model: Any = sharded(mesh)
    session = pilot.train.session(model, sgd(model))
    loader = session.loader(TensorDataset(torch.ones(samples, 4)), global_batch_size=4, micro_batch_size=2)
    with pytest.raises(UserError, match=r"set_requires_gradient_sync\(False\) leaves a batch's gradients"):
        for _ in session.epochs(1):
            for number, (inputs,) in enumerate(loader):
                model.set_requires_gradient_sync(number == 1 and last)
                model(inputs).sum().backward()
                session.step()


def test_gradients_that_wait_for_an_equal_batch_count_the_same(mesh: Any) -> None:
    trained = []
    for synced in (True, False):
        torch.manual_seed(1)
        model: Any = sharded(mesh)
        session = pilot.train.session(model, sgd(model))
        loader = session.loader(TensorDataset(torch.arange(16.0).view(4, 4)), global_batch_size=4, micro_batch_size=2)
        for _ in session.epochs(2):
            for number, (inputs,) in enumerate(loader):
                model.set_requires_gradient_sync(synced or number == 1)
                if number == 0:
                    model.zero_grad()
                model(inputs).sum().backward()
                session.step()
        trained.append([parameter.full_tensor() for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*trained, strict=True))


@pytest.mark.parametrize(("backwards", "said"), [(1, "zero_grad is missing"), (2, "call backward once per batch")])
def test_what_adds_to_a_gradient_that_was_taken_is_refused(mesh: Any, backwards: int, said: str) -> None:
    model = sharded(mesh)
    session = pilot.train.session(model, sgd(model))
    loader = session.loader(TensorDataset(torch.ones(4, 4)), global_batch_size=2)
    with pytest.raises(UserError, match=said):
        for _ in session.epochs(1):
            for (inputs,) in loader:
                for _ in range(backwards):
                    model(inputs).sum().backward()
                session.step()


def test_a_tensor_that_is_divided_otherwise_cannot_be_kept(mesh: Any) -> None:
    from torch.distributed.tensor import DTensor, Replicate

    model = sharded(mesh)
    session = pilot.train.session(model, sgd(model))
    session.loader(TensorDataset(torch.ones(4, 4)), global_batch_size=2)
    session.state["mean"] = DTensor.from_local(torch.ones(2), mesh, [Replicate()])
    with pytest.raises(UserError, match=r"session\.state\['mean'\] is a DTensor that is not divided by rows"):
        next(session.epochs(1))


def test_what_is_trained_and_not_sharded_is_refused(mesh: Any) -> None:
    partly = sharded(mesh, whole=False)
    with pytest.raises(UserError, match=r"parameter 1\.weight is trained but not sharded, while others are"):
        pilot.train.session(partly, sgd(partly))
    model, temperature = sharded(mesh), nn.Parameter(torch.ones(1))
    with pytest.raises(UserError, match=r"parameter optimizer\.0\.4 is trained but not sharded.* part of the model"):
        pilot.train.session(model, torch.optim.SGD([*model.parameters(), temperature], lr=0.1))


def test_what_is_not_sharded_cannot_be_unfrozen(mesh: Any) -> None:
    model = sharded(mesh, whole=False)
    model[1].requires_grad_(requires_grad=False)
    session = pilot.train.session(model, sgd(model))
    loader = session.loader(TensorDataset(torch.ones(4, 4)), global_batch_size=4)
    with pytest.raises(UserError, match=r"parameter 1\.weight is trained but not sharded"):
        for epoch in session.epochs(2):
            model[1].requires_grad_(epoch > 0)
            for (inputs,) in loader:
                model.zero_grad()
                model(inputs).sum().backward()
                session.step()


@pytest.mark.parametrize("buffers", [(1.0, 1.0), (1.0, 2.0)])
def test_what_is_not_sharded_is_compared_in_the_node(mesh: Any, buffers: tuple[float, float]) -> None:
    """By processes of a node that hold other shards of the same parameter."""
    words: list[int] = []
    ties: Any = SimpleNamespace(say=lambda word: [words.append(word), word][1:])
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
    ties.say = lambda _word: words
    numbers = {alarm.checksum(1, group) for alarm in alarms}
    assert len(numbers) == (1 if buffers[0] == buffers[1] else 2)


def test_a_default_group_of_another_size_is_refused(monkeypatch: pytest.MonkeyPatch, mesh: Any) -> None:
    monkeypatch.setenv("PILOT_LOCAL_SIZE", "2")
    with pytest.raises(UserError, match=r"the script has made a process group of 1, and a node has 2 .* leave"):
        node_mesh()
    assert mesh.size() == 1


def test_a_torch_that_lacks_what_is_needed_is_refused() -> None:
    module = SimpleNamespace(_get_fsdp_state=lambda: SimpleNamespace(_fsdp_param_group=None))
    with pytest.raises(UserError, match=r"sharded models need another torch than .*: install 2\.13"):
        _groups_of(module)
