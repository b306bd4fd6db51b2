"""Which trials of a study are promoted: asynchronous successive halving that shelves.

At each rung the best are promoted to the next one: of m that reached rung i, with r_i reports, as many as make the next
rung cost the same in total, floor(m · r_i / r_{i+1}) (ASHA, Li et al., MLSys 2020, with η = r_{i+1} / r_i for each
rung). This is decided again with every value, so no trial waits for a rung to fill: one that is among the best later is
promoted later and continues from its checkpoint. Once no other trial can reach a rung, its best one is promoted in any
case.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilot.core.study import Study, Trial


def promotable(study: Study) -> Iterator[Trial]:
    """The trials that should continue to their next rung and have not been promoted yet."""
    for rung in range(len(study.spec.rungs) - 1):
        order = ranked(study, rung)
        for trial in order[: places(study, rung, len(order))]:
            if trial.rung == rung and not trial.ended:
                yield trial


def ranked(study: Study, rung: int) -> list[Trial]:
    """The trials that have reached ``rung``, the best first; among equals, the earlier one first."""
    there = [trial for trial in study.trials if len(trial.values) > rung]
    return sorted(there, key=lambda trial: (study.key(trial.values[rung]), trial.number))


def places(study: Study, rung: int, reached: int) -> int:
    """How many of ``reached`` trials at ``rung`` are promoted to the next one."""
    rungs = study.spec.rungs
    return max(reached * rungs[rung] // rungs[rung + 1], int(reached > 0 and _closed(study, rung)))


def _closed(study: Study, rung: int) -> bool:
    """Whether no other trial can reach ``rung``."""
    return not study.unasked and not any(
        len(trial.values) <= rung and not trial.ended and (trial.trains or not trial.asked) for trial in study.trials
    )
