"""Fixtures for all tests in this folder."""

from tests.many_sessions import many_sessions  # noqa: F401  # pytest finds fixtures by their names here
