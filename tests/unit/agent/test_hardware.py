"""What the agent finds out about its node: from the tools of the accelerators' drivers, or from the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilot.agent.hardware import hardware, of_amd, of_nvidia

NVIDIA = "NVIDIA A100-SXM4-40GB, 40960\n" * 4
AMD = (
    '{"card0": {"Card Series": "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520"},'
    ' "card1": {"card series": "AMD Instinct MI250X", "VRAM Total Memory (B)": "68702699520"}, "system": {"x": "y"}}'
)


def test_the_tools_answers_are_read() -> None:
    assert of_nvidia(NVIDIA) == [("NVIDIA A100-SXM4-40GB", pytest.approx(42.9, abs=0.1))] * 4
    assert of_nvidia("NVIDIA GB10, [N/A]\n") == [("NVIDIA GB10", 0.0)]
    assert of_amd(AMD) == [("AMD Instinct MI250X", pytest.approx(68.7, abs=0.1))] * 2


@pytest.mark.parametrize("text", ["", "No devices were found", "{", "[]", '{"card0": 3}'])
def test_an_answer_of_another_form_means_no_accelerators(text: str) -> None:
    assert of_nvidia(text) == of_amd(text) == []


def _with_tool(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_node_has_what_the_tool_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _with_tool(monkeypatch, tmp_path, f"printf '{NVIDIA.replace(chr(10), chr(92) + 'n')}'")
    found = hardware()
    assert (found.accelerators, found.accelerator) == (4, "NVIDIA A100-SXM4-40GB")


def test_without_a_tool_that_works_the_memory_is_the_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _with_tool(monkeypatch, tmp_path, "echo no driver; exit 9")
    found = hardware()
    assert (found.accelerator, found.accelerators) == ("", 0)
    assert found.memory_gb > 0.1
    assert found.cores >= 1
