"""What ``pilot doctor --pilots`` sees on a node."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pilot.doctor import node_script
from pilot.train.node.node_group import FABRIC, STORE


@pytest.mark.skipif(torch.accelerator.is_available(), reason="it is about a node without GPUs")
def test_the_bandwidth_between_the_processes_of_a_node_is_measured(tmp_path: Path) -> None:
    environments = [
        {"PILOT_LOCAL_RANK": str(rank), "PILOT_LOCAL_SIZE": "2", STORE: str(tmp_path / "store"), FABRIC: ""}
        for rank in range(2)
    ]
    with ThreadPoolExecutor(2) as threads:
        for lines in threads.map(lambda environment: node_script.seen(environment, 1 << 18), environments):
            no_gpu, between = lines
            assert no_gpu == "no GPU that torch can use"
            found = re.fullmatch(
                r"1 MiB between 2 processes by gloo: summed at (.+) GB/s, gathered at (.+) GB/s", between
            )
            assert found is not None
            assert all(float(rate) > 0 for rate in found.groups())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no GPU here")
def test_gpus_their_links_and_their_bandwidth_are_reported() -> None:
    names, links, copies = node_script.seen({})
    assert "GPU" in names
    assert "NCCL" in links
    assert re.fullmatch(r"host to GPU [\d.]+ GB/s, back [\d.]+ GB/s \(pinned memory\)", copies)
