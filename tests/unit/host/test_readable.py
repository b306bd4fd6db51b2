"""Which descriptors are readable, whatever their numbers."""

from __future__ import annotations

import fcntl
import os
import resource
from collections.abc import Iterator

import pytest

from pilot.host.system import readable

FIRST_THAT_SELECT_REFUSES = 1024


@pytest.fixture
def high() -> Iterator[tuple[int, int]]:
    """A pipe whose read end has a number too high for ``select.select``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FIRST_THAT_SELECT_REFUSES + 8
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    low, writing = os.pipe()
    reading = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, FIRST_THAT_SELECT_REFUSES)
    os.close(low)
    yield reading, writing
    os.close(reading)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_high_descriptor_is_waited_for_and_its_end_is_seen(high: tuple[int, int]) -> None:
    reading, writing = high
    assert readable([reading], 0.0) == []
    os.write(writing, b"x")
    assert readable([reading]) == [reading]
    assert os.read(reading, 1) == b"x"
    os.close(writing)
    assert readable([reading]) == [reading]
