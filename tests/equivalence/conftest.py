"""Fixtures for all tests in this folder."""

import pytest

from tests.many_sessions import many_sessions  # noqa: F401  # pytest finds fixtures by their names here
from tests.small_heap import small_heap  # noqa: F401  # as above
from tests.sound_looks import sound_looks  # noqa: F401  # as above

pytest.register_assert_rewrite("tests.equivalence.keeping")  # its loops are made long, too (tests.equivalence.longer)
