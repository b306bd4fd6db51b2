"""What tests do otherwise for a mutant: ``pytest -p tests.mutants.plugin``."""

import resource
import time

import pytest
from hypothesis import Phase, settings

MOST_S = 15
"""A test that takes so much of the processor hangs: that is noticed, too. The longest of all takes less than three."""

# The same examples for every mutant; which is the smallest that fails is not asked.
settings.register_profile(
    "mutants", derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Until it ends, SIGXCPU ends it all."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MOST_S, resource.RLIM_INFINITY))
