"""A run's identity in words: which changes of it are acceptable, and what the words say about its samples."""

from __future__ import annotations

import pytest

from pilot.core.errors import UserError
from pilot.protocol.run_identity import (
    ACCEPTABLE,
    DROP_LAST,
    LENGTH,
    PER_NODE,
    STREAM,
    WHOLE,
    AcceptedChange,
    Samples,
    acceptable,
    before,
)


def test_kinds_of_changes_stand_for_names() -> None:
    assert acceptable("seed, batches,,") == {*ACCEPTABLE["seed"], *ACCEPTABLE["batches"]}
    assert acceptable("") == frozenset()
    with pytest.raises(UserError, match="changes of 'model' cannot be accepted, only of seed, dataset"):
        acceptable("seed,model")


def test_samples_are_read_from_an_identity() -> None:
    words = {LENGTH: "100", WHOLE: "8", PER_NODE: "3", DROP_LAST: "True"}
    assert Samples.of(words) == Samples(100, 8, True)
    assert Samples.of({LENGTH: STREAM, PER_NODE: "1"}) == Samples(None, 1, False)
    assert Samples.of({}) == Samples(0, 1, False)
    assert Samples.of({LENGTH: "9" * 18, WHOLE: "9" * 19}) == Samples(10**18 - 1, 1, False)
    assert Samples.of({LENGTH: "\u0663", WHOLE: "-4"}) == Samples(0, 1, False)


@pytest.mark.parametrize(
    ("samples", "cursor", "size"),
    [
        (Samples(100, 8, False), 96, 100),
        (Samples(100, 8, True), 96, 96),
        (Samples(100, 8, True), 93, 93),
        (Samples(100, 8, True), 92, 100),
        (Samples(100, 8, True), 100, 100),
        (Samples(100, 8, True), 101, 100),
        (Samples(None, 8, False), 77, 77),
    ],
)
def test_the_samples_that_an_epoch_should_have_had(samples: Samples, cursor: int, size: int) -> None:
    assert samples.size(cursor, batch=8) == size


def test_words_as_they_were_before_a_change() -> None:
    changes = (AcceptedChange(5, "a", "1", "2"), AcceptedChange(9, "a", "2", "3"))
    assert [before({"a": "3", "b": "x"}, changes, step)["a"] for step in (4, 5, 8, 9)] == ["1", "2", "2", "3"]
    assert before({"a": "3", "b": "x"}, changes, 0) == {"a": "1", "b": "x"}
    assert str(changes[0]) == "a was changed from 1 to 2 after step 5"
