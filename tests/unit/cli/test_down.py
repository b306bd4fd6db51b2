"""``pilot down`` does not say that nothing is left where something is."""

from __future__ import annotations

from pathlib import Path

from pilot.cli.down import errors_since

BEFORE = "2026-11-20 14:00:00,001 ERROR pilot.service: of an earlier pool\n"
SINCE = """\
2026-11-20 14:46:42,815 INFO pilot.service.api: draining: pilot down
2026-11-20 14:46:43,000 WARNING pilot.service.service: ERROR is not its level
2026-11-20 14:47:45,406 ERROR pilot.service: these jobs are still there; cancel them by hand: 17, 18
Traceback (most recent call last):
"""


def test_errors_since_the_drain_began(tmp_path: Path) -> None:
    log = tmp_path / "coordinator.log"
    log.write_text(BEFORE + SINCE)
    assert errors_since(log, len(BEFORE)) == ["these jobs are still there; cancel them by hand: 17, 18"]
    assert errors_since(log, len(BEFORE + SINCE)) == []
