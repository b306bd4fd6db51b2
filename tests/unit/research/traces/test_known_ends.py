from pilot.core.ids import NodeId
from pilot.research.traces.changes import Change, with_ends

A, B, C = map(NodeId, "abc")
CHANGES = [Change(0.0, (A, B)), Change(5.0, (C,), (A,)), Change(9.0, (A,), (B, C))]


def test_who_joins_says_when_it_leaves() -> None:
    told = with_ends(CHANGES, 1.0, seed=1)
    assert [change.ends for change in told] == [((A, 5.0), (B, 9.0)), ((C, 9.0),), ()], "A stays to the end"
    assert [Change(c.time_s, c.joined, c.left) for c in told] == CHANGES


def test_a_share_of_them_does_drawn_by_the_seed() -> None:
    many = [Change(0.0, tuple(NodeId(f"n{i}") for i in range(2000)))]
    many.append(Change(1.0, left=many[0].joined))
    half = with_ends(many, 0.5, seed=1)
    assert 900 < len(half[0].ends) < 1100
    assert with_ends(many, 0.5, seed=1) == half != with_ends(many, 0.5, seed=2)
    assert with_ends(many, 0.0, seed=1) == many
