"""A site is validated, with errors in an admin's terms."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pilot.site.site import Site, SiteMistakes, walltime_seconds, walltime_text


def mistakes(**fields: object) -> list[str]:
    with pytest.raises(SiteMistakes) as caught:
        Site(**{"name": "x", "scheduler": "slurm", **fields})
    return caught.value.lines


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schedular": "x"}, "schedular: no such field; did you mean scheduler?"),
        ({"zzz": 1}, "zzz: no such field; see site_configs/_template.py"),
        ({"scheduler": "slrum"}, "scheduler: expected 'local' or 'slurm' or 'pbspro' or 'lsf', got 'slrum'"),
        ({"walltime": "two days"}, "walltime: 'two days' is not HH:MM:SS; for example walltime='48:00:00'"),
        ({"walltime": "00:00:30"}, "walltime: '00:00:30' is less than a minute"),
        ({"max_jobs": 0}, "max_jobs: expected int >= 1, got 0; for example max_jobs=20"),
        ({"poll_s": float("nan")}, "poll_s: expected float > 0.0, got nan"),
        ({"cores_per_node": "many"}, "cores_per_node: expected int, got 'many'"),
        ({"queue": "q"}, 'queue: Slurm has partitions; for example partition="preempt"'),
        ({"scheduler": "lsf", "partition": "p"}, "partition: only Slurm has partitions"),
        ({"scheduler": "lsf", "select_options": "ngpus=4"}, "select_options: only PBS has a select line"),
        ({"nodes_per_pilot": 2}, "nodes_per_pilot: more than 1 needs a launcher that reaches all nodes"),
        ({"walltime_min": "02:00:00"}, "walltime_min: 02:00:00 is more than walltime 01:00:00"),
        ({"silent_s": 5}, "silent_s: 5 must be more than heartbeat_s: 5"),
        ({"orphan_s": 10}, "orphan_s: 10 must not be less than silent_s: 30"),
        ({"silent_s": 6, "orphan_s": 6}, "orphan_s: 6 must be at least twice heartbeat_s: 5"),
        ({"bind_address": "0.0.0.0", "bind_interface": "lo"}, "bind_address: give it or bind_interface, not both"),
        ({"ranks_per_node": 0}, "ranks_per_node: expected int >= 1, got 0"),
        ({"ranks_per_node": 4, "cores_per_node": 2}, "ranks_per_node: 4 is more than cores_per_node, 2"),
        ({"between_nodes": "tcp"}, "between_nodes: expected 'mpi' or 'gloo' or 'nccl', got 'tcp'"),
        (
            {"between_nodes": "gloo", "ranks_per_node": 2, "node_fabric": "shared-memory"},
            'node_fabric: shared-memory does not work with between_nodes="gloo"; remove it',
        ),
        (
            {"between_nodes": "nccl", "ranks_per_node": 2, "node_fabric": "gloo"},
            'node_fabric: gloo does not work with between_nodes="nccl"; remove it',
        ),
        (
            {"between_nodes": "gloo", "ranks_per_node": 2, "node_fabric": "nccl"},
            'node_fabric: nccl does not work with between_nodes="gloo"; remove it',
        ),
        ({"name": "a b"}, "name: expected str matching regex"),
        *(({"interface": value}, "interface: expected str matching") for value in ("hsn0,", "hsn0, hsn1", "")),
        ({"checkpoint_dir": "checkpoints"}, "checkpoint_dir: 'checkpoints' is not an absolute path (~ and $ are not"),
        ({"scratch_dir": "/scratch/$USER"}, "scratch_dir: '/scratch/$USER' is not an absolute path"),
        ({"scratch_dir": ""}, "scratch_dir: '' is not an absolute path"),
        ({"python": "~/venv/bin/python"}, "python: '~/venv/bin/python' is not an absolute path"),
        ({"scheduler_options": "#SBATCH -C gpu\n--mem=0"}, "scheduler_options: '--mem=0' is not a directive; for"),
    ],
)
def test_a_wrong_field_is_named_with_what_is_wrong(fields: dict[str, object], message: str) -> None:
    assert [line for line in mistakes(**fields) if line.startswith(message)]


def test_an_interpreter_on_the_path_and_comments_between_directives_are_right() -> None:
    options = "\n#SBATCH -C gpu\n# memory\n#SBATCH --mem=0\n"
    site = Site(name="x", scheduler="slurm", python="python3.12", scheduler_options=options)
    assert (site.python, site.scheduler_options) == ("python3.12", options)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(SiteMistakes) as caught:
        Site(walltime="x", fabric="")
    lines = caught.value.lines
    assert [line.split(":")[0] for line in lines] == ["name", "scheduler", "walltime", "fabric"]
    assert lines[1] == "scheduler: missing; for example scheduler='slurm'"


def test_replace_validates_again_and_keeps_the_rest() -> None:
    site = Site(name="x", scheduler="slurm", partition="preempt", walltime="02:00:00")
    assert msgspec.structs.asdict(site.replace(account="abc")) == {**msgspec.structs.asdict(site), "account": "abc"}
    with pytest.raises(SiteMistakes):
        site.replace(walltime="soon")


def test_a_wrong_value_of_any_field_is_reported_with_an_example() -> None:
    names = Site.__struct_fields__
    assert [line.split(";")[1].split("=")[0] for line in mistakes(**dict.fromkeys(names, object()))] == [
        f" for example {name}" for name in names
    ]


@pytest.mark.parametrize("value", [float("inf"), 10**5000, 10**400, "\ud800", True, b"x", lambda: 0], ids=range(7))
def test_what_no_journal_can_hold_is_refused(value: object) -> None:
    names = ("poll_s", "port", "account", "second_hand")
    found = mistakes(**dict.fromkeys(names, value), max_jobs=0)
    assert len(found) == len(names) + 1
    assert all(line.isprintable() for line in found)


@pytest.mark.parametrize("text", ["1:2:3", "00:60:00", "24:00", "", "-1:00:00", "1e3:00:00"])
def test_what_is_no_wall_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not HH:MM:SS"):
        walltime_seconds(text)


def test_wall_times() -> None:
    assert [walltime_seconds(text) for text in ("00:01:00", "48:00:00", "100:30:59")] == [60, 172800, 361859]
    assert walltime_text(3659.9) == "01:00:00", "cut to minutes"
    assert walltime_text(100 * 3600 + 60) == "100:01:00"
    assert Site(name="x", scheduler="slurm").walltime_min_s == 3600


@pytest.mark.parametrize(
    ("given", "rails"),
    [
        ({"ranks_per_node": 4}, 1),
        ({"interface": "hsn0,hsn1"}, 2),
        ({"ranks_per_node": 8, "node_fabric": "nccl"}, 4),
        ({"ranks_per_node": 2, "node_fabric": "nccl"}, 2),
        ({"ranks_per_node": 4, "node_fabric": "nccl", "interface": "hsn0", "rails": 1}, 1),
        ({"ranks_per_node": 4, "node_fabric": "nccl", "interface": "hsn0,hsn1", "between_nodes": "nccl"}, 1),
        ({"between_nodes": "gloo", "rails": 2}, 2),
    ],
)
def test_a_node_has_a_rail_for_each_interface_and_up_to_four_for_its_gpus(given: dict[str, Any], rails: int) -> None:
    assert Site(name="s", scheduler="slurm", **given).rails_per_node == rails


@pytest.mark.parametrize("between", ["mpi", "gloo", "nccl"])
def test_nodes_with_one_process_sum_in_any_way_whatever_the_fabric_within(between: str) -> None:
    site = Site(name="s", scheduler="slurm", node_fabric="shared-memory", between_nodes=between)
    assert site.between_nodes == between
    assert Site(name="s", scheduler="slurm").between_nodes == "mpi"


A100 = {"partition": "gpuA100x4", "max_jobs": 8}


def test_a_type_of_nodes_is_the_site_with_the_fields_in_which_it_differs() -> None:
    site = Site(name="x", scheduler="slurm", account="abc", node_types={"a100": A100, "a40": {"partition": "gpuA40x4"}})
    a100 = site.of_type("a100")
    assert (a100.partition, a100.max_jobs, a100.account, a100.node_types) == ("gpuA100x4", 8, "abc", {})
    assert site.replace(account="def").of_type("a40").account == "def"


@pytest.mark.parametrize(
    ("types", "messages"),
    [
        ({"a100": {**A100, "max_jobs": 0, "walltime": "x"}}, ["a100: walltime: 'x' is", "a100: max_jobs: expected"]),
        ({"a100": {"partiton": "p"}}, ["a100: partiton: no such field; did you mean partition?"]),
        ({"a100": {"ranks_per_node": 4}}, ["a100: ranks_per_node: it must be the same for all types"]),
        ({"a100": {"self": 1}}, ["a100: self: no such field"]),
        ({"a100": {"queue": "q"}}, ["a100: queue: Slurm has partitions"]),
        ({"a100/slow": A100}, ["a100/slow: a name has up to 32 letters"]),
        ({"a100": {"node_types": {"b": {}}}}, ["a100: node_types: it must be the same for all types"]),
    ],
)
def test_a_mistake_in_a_type_is_told_with_its_name(types: dict[str, object], messages: list[str]) -> None:
    told = mistakes(node_types=types)
    assert len(told) == len(messages), told
    assert all(line.startswith(f"node_types: {start}") for line, start in zip(told, messages, strict=True)), told
