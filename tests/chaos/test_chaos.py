"""A short storm as part of the tests; ``make chaos`` runs the long ones."""

import pytest

from tests.chaos.run import chaos
from tests.pools import Pool


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_storm(pool: Pool) -> None:
    assert chaos(pool, seed=1, seconds=20.0, epochs=15, note=print) == []
