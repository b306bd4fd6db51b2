"""Trainers and curves of a replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilot.core.errors import UserError
from pilot.research.traces.workload import COLUMNS, WorkloadRow, read_workload

CURVES = [
    {"nodes": [0, 1, 2], "samples_per_s": [0, 10, 18]},
    {"nodes": [0, 1, 2], "samples_per_s": [0, 5, 10], "objective_per_s": [0, 1, 2]},
]
ROW = "t1,0.0,1,2,18.0,12.0,1000.0,0"


def read(tmp_path: Path, *rows: str, curves: object = CURVES, header: str = ",".join(COLUMNS)) -> list[WorkloadRow]:
    (tmp_path / "trainers.csv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / "curves.json").write_text(curves if isinstance(curves, str) else json.dumps(curves))
    return read_workload(tmp_path / "trainers.csv", tmp_path / "curves.json")


def test_trainers_come_in_submission_order_with_their_curves(tmp_path: Path) -> None:
    late, early = read(tmp_path, "t1,36,1,2,18,12,1000,0", "t0,0,1,2,18,12,500,1")[::-1]
    assert (early.spec.trainer, early.samples, early.curve) == ("t0", 500.0, 1)
    assert early.spec.objective_curve is not None and early.spec.objective_curve.at(2) == 2.0
    assert late.spec.curve is not None and late.spec.curve.at(2) == 18.0
    assert late.spec.objective_curve is None and late.spec.fixed_curve


def test_a_priority_may_be_given(tmp_path: Path) -> None:
    header, rows = ",".join([*COLUMNS, "priority"]), [f"{ROW},2.5", f"t2{ROW[2:]},"]
    assert [submission.spec.priority for submission in read(tmp_path, *rows, header=header)] == [2.5, 1.0]
    assert read(tmp_path, ROW)[0].spec.priority == 1.0
    with pytest.raises(UserError, match=r"trainers\.csv:2: trainer t1: priority must be greater than 0"):
        read(tmp_path, f"{ROW},0", header=header)
    with pytest.raises(UserError, match=r"trainers\.csv:2: expected 9 columns"):
        read(tmp_path, ROW, header=header)


def test_speeds_types_and_shares_may_be_given(tmp_path: Path) -> None:
    header = ",".join([*COLUMNS, "speeds", "types", "shares"])
    rows = f"{ROW},a100=1 v100=0.45,a100 v100,equal", f"t2{ROW[2:]},,,"
    one, other = read(tmp_path, *rows, header=header)
    assert (one.spec.speeds, one.spec.types) == ((("a100", 1.0), ("v100", 0.45)), ("a100", "v100"))
    assert (other.spec.speeds, other.spec.types) == ((), ())
    assert (one.equal_shares, other.equal_shares) == (True, False)
    types = "v100", "t4", "a100"
    assert one.speeds_on(types) == (0.45, 0.0, 1.0)
    assert other.speeds_on(types) == (1.0, 1.0, 1.0)
    for cells, message in (
        ("v100=fast,,", "the speed on v100 is not a number: 'fast'"),
        ("v100=0,,", "the speed on v100 must be at least 1e-06, got 0"),
        (",,free", "shares must be empty or equal, got free"),
    ):
        with pytest.raises(UserError, match=rf"^\S*trainers\.csv:2: {message}"):
            read(tmp_path, f"{ROW},{cells}", header=header)


def test_a_trainer_with_speeds_has_one_for_each_type_that_it_can_use(tmp_path: Path) -> None:
    header = ",".join([*COLUMNS, "speeds"])
    (row,) = read(tmp_path, f"{ROW},a100=1", header=header)
    with pytest.raises(UserError, match="trainer t1 has no speed on nodes of type v100"):
        row.speeds_on(("a100", "v100"))


def test_sizes_may_be_given(tmp_path: Path) -> None:
    header, rows = ",".join([*COLUMNS, "sizes"]), [f"{ROW},1 2", f"t2{ROW[2:]},"]
    assert [submission.spec.sizes for submission in read(tmp_path, *rows, header=header)] == [(1, 2), ()]
    for sizes, message in (
        ("2 1", "must be increasing"),
        ("1 3", "size 3 is not between 1 and 2"),
        ("1;2", "whole numbers"),
    ):
        with pytest.raises(UserError, match=rf"trainers\.csv:2: .*{message}"):
            read(tmp_path, f"{ROW},{sizes}", header=header)


def test_sizes_of_a_replay_are_limited_to_a_trainers_bounds(tmp_path: Path) -> None:
    (submission,) = read(tmp_path, ROW)
    assert submission.sized((1, 2, 4)).spec.sizes == (1, 2)
    with pytest.raises(UserError, match="t1 runs on from 1 to 2 nodes, and none of the sizes 4,8 is"):
        submission.sized((4, 8))


def test_rescale_costs_and_curves_can_be_exchanged(tmp_path: Path) -> None:
    (submission,) = read(tmp_path, ROW)
    assert submission.rescaled(2).spec.rescale_up_s == 36.0
    curve = submission.spec.curve
    assert curve is not None
    other = submission.on_curve(1, [(curve, None), (curve.scaled(3), None)])
    assert other.curve == 1 and other.spec.curve is not None and other.spec.curve.at(1) == 30.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("t1,0,1,2,18,12,1000,7", r"trainers\.csv:2: curve 7 is unknown; the curves file has 0 to 1"),
        ("t1,0,1,2,18,12,nan,0", r"trainers\.csv:2: samples is not a finite number"),
        ("t1,0,3,2,18,12,1000,0", r"trainers\.csv:2: trainer t1: min_nodes 3 exceeds max_nodes 2"),
        ("t1,0,1.5,2,18,12,1000,0", r"trainers\.csv:2: min_nodes must be a whole number"),
        ("t1,0,1,2,-18,12,1000,0", r"trainers\.csv:2: rescale_up_s must be at least 0"),
        ("t1,0,1,2", r"trainers\.csv:2: expected 8 columns, as the header has, found 4"),
        (ROW + ",1", r"trainers\.csv:2: expected 8 columns, as the header has, found 9"),
        ('t1,0,"1,2,18,12,1000,0', r"trainers\.csv:2: the quotes .* in this line do not match"),
        ("t1,x,1,2,18,12,1000,0", r"trainers\.csv:2: submit_s is not a number: 'x'"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, row: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, row)


def test_a_bad_row_is_named_once_whatever_the_name_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path, ROW)
    text = (tmp_path / "trainers.csv").read_text()
    (tmp_path / "trainer").write_text(text.replace(ROW, "t1,0,3,2,18,12,1000,0"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as raised:
        read_workload(Path("trainer"), Path("curves.json"))
    assert str(raised.value) == "trainer:2: trainer t1: min_nodes 3 exceeds max_nodes 2"


def test_an_id_is_used_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainers\.csv:3: trainer t1 appears twice"):
        read(tmp_path, ROW, ROW)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainers\.csv:1: missing column samples, curve"):
        read(tmp_path, "t1,0,1,2,18,12", header=",".join(COLUMNS[:6]))


def test_no_trainers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no trainers"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        ("[{", r"curves\.json:1: not JSON"),
        ([], "expected a list of curves"),
        ([{"nodes": [0, 1]}], "curve 0: expected an object with nodes and samples_per_s"),
        ([{"nodes": [0, 1, 1], "samples_per_s": [0, 1, 2]}], "curve 0: the node column .* strictly increasing"),
        ([{"nodes": [0, 1], "samples_per_s": [0]}], "curve 0: nodes and its values must be lists"),
        ('[{"nodes": [0, 1], "samples_per_s": [0, NaN]}]', "curve 0: .*not a finite number"),
        ([{"nodes": [1, 2], "samples_per_s": [0, 5]}], "curve 0: samples_per_s must be greater than 0 from its first"),
    ],
)
def test_a_bad_curves_file_is_named(tmp_path: Path, curves: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(tmp_path, ROW, curves=curves)
