"""Which GPU belongs to which process. What only a GPU shows is marked."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pilot.core.errors import GPU_FAILED_STATUS, UserError
from pilot.train.data import rng
from pilot.train.node import devices
from pilot.train.node.membership import Seat


def test_fewer_gpus_than_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    with pytest.raises(UserError, match="ranks_per_node is 4, but a process sees only 1 GPU on this node"):
        devices.take_own(Seat(3, 4), lambda: 1)


def test_each_process_takes_that_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "set_device_index", taken.append)
    devices.take_own(Seat(2, 4), lambda: 4)
    devices.take_own(Seat(1, 2), lambda: 0)  # a node without one
    devices.take_own(Seat(0, 1), lambda: 4)  # it is not queried
    assert taken == [2]


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_a_script_that_ends_because_its_gpu_failed_may_do_on_another_node(error: RuntimeError) -> None:
    assert devices.exit_status(error) == GPU_FAILED_STATUS


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), UserError("no CUDA error"), KeyError("CUDA error")])
def test_other_errors_are_the_scripts(error: Exception) -> None:
    assert devices.exit_status(error) == 1


class Elsewhere:
    """A tensor, as far as its device is concerned."""

    def __init__(self, name: str) -> None:
        self.device = torch.device(name)


def test_a_model_on_the_gpu_of_another_process_is_refused() -> None:
    models: Any = [Elsewhere("cuda:0")]
    with pytest.raises(UserError, match=re.escape("the model is on cuda:0, but this process has the GPU cuda:1")):
        devices.check_own(models, Seat(1, 2))
    devices.check_own([torch.ones(1)], Seat(1, 2))


class Generator:
    """Stands in for a device's module, with one generator."""

    def __init__(self) -> None:
        self.generator = torch.Generator()

    def manual_seed(self, seed: int) -> None:
        self.generator.manual_seed(seed)

    def get_rng_state(self) -> torch.Tensor:
        return self.generator.get_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        self.generator.set_state(state)


def test_the_generator_of_a_device_is_seeded_and_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Generator()
    monkeypatch.setattr(rng, "_device_module", lambda: device)
    rng.seed_all(7)
    first = torch.rand(3, generator=device.generator)
    state = rng.capture()
    following = torch.rand(3, generator=device.generator)
    rng.seed_all(8)
    assert not torch.equal(torch.rand(3, generator=device.generator), first)
    rng.restore(state)
    assert torch.equal(torch.rand(3, generator=device.generator), following)
    monkeypatch.setattr(rng, "_device_module", lambda: None)
    rng.restore(state)  # on a node without one
    assert "device" not in rng.capture()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_dropout_masks_follow_the_seed_on_a_gpu() -> None:
    ones = torch.ones(1000, device="cuda")
    rng.seed_all(7)
    first = torch.nn.functional.dropout(ones)
    state = rng.capture()
    second = torch.nn.functional.dropout(ones)
    rng.restore(state)
    assert torch.equal(torch.nn.functional.dropout(ones), second)
    rng.seed_all(7)
    assert torch.equal(torch.nn.functional.dropout(ones), first)
    rng.seed_all(8)
    assert not torch.equal(torch.nn.functional.dropout(ones), first)
