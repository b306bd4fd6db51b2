"""The trainers' ledgers, from a journal. The coordinator keeps none: they grow with every generation, the journal
contains all of them, and no decision depends on them."""

from __future__ import annotations

from collections.abc import Iterable

from pilot.core.events import (
    GroupFormed,
    Progress,
    TrainerSubmitted,
)
from pilot.core.ids import TrainerId
from pilot.core.ledger import Ledger
from pilot.core.run_identity import AcceptedChange
from pilot.core.study_events import (
    TrialAsked,
)
from pilot.io.entries import Decision


def ledgers(decisions: Iterable[Decision]) -> dict[TrainerId, Ledger]:
    """The ledger of every trainer in a journal, in submission order, however the trainer ended."""
    found: dict[TrainerId, Ledger] = {}
    for decision in decisions:
        match decision.event:
            case TrainerSubmitted() | TrialAsked() as came:
                found[came.spec.trainer] = Ledger()
            case GroupFormed() as formed if formed.trainer in found:
                ledger = found[formed.trainer]
                ledger.began(formed.generation, formed.step)
                ledger.identity = dict(formed.identity)
                ledger.accepted = tuple(AcceptedChange(*change) for change in formed.accepted)
            case Progress() as progress if progress.trainer in found:
                found[progress.trainer].add(progress.ledger)
            case _:
                pass
    return found
