"""How tests behave differently for a mutant: ``pytest -p tests.mutants.plugin``."""

import resource
import time

import pytest
from hypothesis import Phase, settings

MOST_S = 15
"""A test that uses this much CPU time hangs, and is caught. The longest of all takes less than three seconds."""

# The same examples for every mutant; failing ones are not shrunk.
settings.register_profile(
    "mutants", derandomize=True, database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
)
settings.load_profile("mutants")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """When the time is up, SIGXCPU ends the whole process."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + MOST_S, resource.RLIM_INFINITY))
