from pathlib import Path

import pytest

from pilot.core.curves.curve import Curve
from pilot.core.errors import UserError
from pilot.submission.submission import read_curve


def test_commas_blanks_header_and_comments(tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    file.write_text("nodes,samples_per_s\n# measured\n1,100\n2  190 # two\n\n4,300\n")
    assert read_curve(file) == Curve.of([(1, 100), (2, 190), (4, 300)])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("1,100\n1,190\n", "curve.csv:2: the node column must be increasing, got 1 after 1"),
        ("2,100\n1,190\n", "curve.csv:2: the node column must be increasing, got 1 after 2"),
        ("1,nan\n", "curve.csv:1: '1 nan' is not two finite numbers"),
        ("1,-3\n", "curve.csv:1: the rate -3 is negative"),
        ("1\n2\n", "curve.csv:1: 1 columns; a scaling curve has two, nodes and samples per second"),
        ("nodes,rate\n", "curve.csv: no points"),
        ("1,100\nx,y\n", "curve.csv:2: 'x y' is not two finite numbers"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_line(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(text)
    with pytest.raises(UserError) as refused:
        read_curve(file)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_curve(tmp_path / "none.csv")
