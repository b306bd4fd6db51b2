"""The commands that bring one trainer from where it stands to where the plan wants it.

Theory of operation
-------------------
Level-triggered: nothing here remembers how a state came about. After every event the coordinator calls
:func:`reconcile` for each trainer that the event touched; out come the commands that lead from the facts to the target.
Calling it once more changes nothing until another event comes.

Five questions are asked, one after the other: does the trainer end, does it lack workers, what becomes of its group,
does it have workers that nobody needs, and is its script to be checked. :data:`QUESTIONS` is the table of answers, and
it alone decides: the first :class:`Rule` of a question that applies acts, and if that rule is *final*, the later
questions are not asked.
ARCHITECTURE.md shows this table.

- Workers are started first, whatever the group does: newcomers import and warm up while the others train.
- While a group pauses or forms, its completion is awaited and nothing else is decided. The coordinator dissolves a
  group that forms when one of its members is lost or gets a notice.
- A group trains on until the next one takes over, so that a change costs only the switch. It pauses only if it cannot
  train on.
- The state of workers that have to go is saved before they are stopped, if no other worker can keep it.

A leaving node without workers is released by the coordinator, because it concerns no single trainer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pilot.core import commands
from pilot.core.pool.pool import Pool
from pilot.core.trainer import actions
from pilot.core.trainer.situation import Situation
from pilot.core.trainer.trainer import Trainer


@dataclass(frozen=True, slots=True)
class Rule:
    """If ``applies``, ``action`` returns the commands; ``gives`` lists their kinds.

    ``facts`` says in words what ``applies`` asks, given that the rules above do not apply. ``final``: nothing more is
    asked after this rule.
    """

    name: str
    facts: str
    applies: Callable[[Situation], bool]
    action: actions.Action = actions.wait
    gives: tuple[type[commands.Command], ...] = ()
    final: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """The first of its ``rules`` that applies answers it; if none does, nothing needs to be done."""

    asked: str
    rules: tuple[Rule, ...]


def reconcile(trainer: Trainer, pool: Pool) -> list[commands.Command]:
    """The commands that ``trainer`` needs now; its bookkeeping is updated as if they were given."""
    out: list[commands.Command] = []
    situation = Situation(trainer, pool)
    for question in QUESTIONS:
        for rule in question.rules:
            if rule.applies(situation):
                out += rule.action(situation)
                if rule.final:
                    return out
                break
    return out


ENDS = Question(
    "Does it end?",
    (
        Rule("ended", "it has ended", lambda s: s.trainer.outcome is not None, final=True),
        Rule(
            "ends",
            "it finished, failed or was cancelled: all its workers are stopped, and with the last one it is closed",
            lambda s: s.trainer.closing is not None,
            actions.close,
            (commands.DissolveGroup, commands.StopWorker, commands.CloseTrainer),
            final=True,
        ),
        Rule(
            "stops",
            "it is to stop and has no worker left: its state is saved, and it is closed",
            lambda s: s.trainer.stops and not s.trainer.workers,
            actions.close_stopped,
            (commands.CloseTrainer,),
            final=True,
        ),
    ),
)

LACKS = Question(
    "Does it lack workers?",
    (
        Rule(
            "newcomers",
            "target nodes have no worker",
            lambda s: bool(s.lacking),
            actions.start_lacking,
            (commands.StartWorker,),
        ),
    ),
)

GROUP = Question(
    "What becomes of its group?",
    (
        Rule("pausing", "its group pauses: that is awaited", lambda s: s.trainer.pausing, final=True),
        Rule("forming", "a group forms: that is awaited", lambda s: s.trainer.forming is not None, final=True),
        Rule("writing", "a checkpoint is written on request: that is awaited", lambda s: bool(s.trainer.writing)),
        Rule(
            "none stays",
            "a group trains, and none of its members stays",
            lambda s: s.trains and not s.staying,
            actions.pause("none of its nodes stays"),
            (commands.PauseGroup,),
            final=True,
        ),
        Rule(
            "too few stay",
            "a group trains, too few are left for the next one, and either a member got a notice, or others wait for"
            " one and "
            "no newcomer is expected",
            lambda s: s.trains and s.too_few and (s.noticed or (s.holds_up and not s.pending)),
            actions.pause("too few of its nodes stay"),
            (commands.PauseGroup,),
            final=True,
        ),
        Rule(
            "in between",
            "a group trains, and too few are ready for the next one: it trains on until they are",
            lambda s: s.trains and s.too_few,
        ),
        Rule(
            "members leave",
            "a group trains, and some of its members do not stay: it trains on until the next one takes over",
            lambda s: s.parting,
            actions.form("nodes are taken back"),
            (commands.FormGroup,),
        ),
        Rule(
            "members come",
            "a group trains, and all newcomers are ready: it trains on until the next one takes over",
            lambda s: s.trains and bool(s.newcomers) and not s.pending,
            actions.form("nodes were added"),
            (commands.FormGroup,),
        ),
        Rule("trains", "a group trains, as planned or until all newcomers are ready", lambda s: s.trains),
        Rule(
            "parked",
            "no group, and the unsaved state is held by too few to train (it is parked)",
            lambda s: s.parked_unsaved,
            actions.save_parked,
            (commands.WriteCheckpoint,),
        ),
        Rule(
            "none can stay",
            "no group, and the unsaved state is only on nodes that do not stay",
            lambda s: s.unsaved and not s.staying,
            actions.save_going,
            (commands.WriteCheckpoint,),
        ),
        Rule(
            "too few",
            "no group, and too few workers are ready: it waits for more of them, or for a plan",
            lambda s: s.too_few,
        ),
        Rule(
            "warming up",
            "no group, and too few hold a state: it waits for the target's other workers to be ready",
            lambda s: s.pending and s.too_few_stay,
        ),
        Rule(
            "survivors",
            "no group, and workers that hold a state stay: they continue at once, with the newcomers that are ready",
            lambda s: bool(s.staying),
            actions.form("the survivors continue"),
            (commands.FormGroup,),
        ),
        Rule(
            "all are ready",
            "no group, and no worker that stays holds a state: it starts from the newest checkpoint, or from scratch",
            lambda _: True,
            actions.form("it can start"),
            (commands.FormGroup,),
        ),
    ),
)

SURPLUS = Question(
    "Has it workers that nobody needs?",
    (
        Rule("saving", "a state is being written that no staying worker holds", lambda s: s.saving_what_goes),
        Rule(
            "surplus",
            "there are workers on nodes that neither the target nor a group nor a checkpoint needs",
            lambda s: bool(s.surplus),
            actions.stop_surplus,
            (commands.StopWorker,),
        ),
    ),
)

PROOF = Question(
    "Is its script to be checked?",
    (
        Rule(
            "unproved",
            "its script waits for its check, and a group trains on one node that stays",
            lambda s: s.to_be_checked,
            actions.check,
            (commands.CheckScript,),
        ),
    ),
)

QUESTIONS = (ENDS, LACKS, GROUP, SURPLUS, PROOF)
"""All rules, in the order in which they are tried."""
