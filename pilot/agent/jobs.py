"""What an agent hands to the programs that it starts: how a script is launched, and what is this node's about it."""

from __future__ import annotations

import msgspec

from pilot.io.submission import LaunchSpec


class ForkJob(msgspec.Struct, frozen=True):
    """A training process to start. ``life`` identifies it; ``threads`` is how many torch may use; the environment in
    ``launch`` has our variables, too.
    """

    life: int
    threads: int
    launch: LaunchSpec


class CheckJob(msgspec.Struct, frozen=True):
    """A script to check. ``kept_in``: where verdicts are kept."""

    launch: LaunchSpec
    limit_s: float
    kept_in: str
