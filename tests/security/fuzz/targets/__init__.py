"""One file per kind of input."""

from __future__ import annotations

from tests.security.fuzz.target import Target
from tests.security.fuzz.targets import (
    checkpoints,
    cli,
    connections,
    control_packets,
    curves,
    hearsay,
    hostlists,
    journal_blocks,
    journals,
    notes,
    sites,
    snapshots,
    traces,
    worker_packets,
)

TARGETS: list[Target] = [
    module.TARGET
    for module in (
        checkpoints,
        connections,
        sites,
        journals,
        journal_blocks,
        snapshots,
        hostlists,
        traces,
        curves,
        notes,
        worker_packets,
        control_packets,
        hearsay,
        cli,
    )
]
