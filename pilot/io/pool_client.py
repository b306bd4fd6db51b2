"""A coordinator's requests as methods, with typed arguments and answers; errors of the coordinator are raised here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pilot.core.errors import PilotError, UserError
from pilot.io import study_verbs, verbs
from pilot.io.client import request
from pilot.io.pool_status import PoolStatus, TrainerHistory
from pilot.io.printable import all_printable
from pilot.io.study_definition import StudyDefinition
from pilot.io.study_verbs import StudyList, StudyStatus, TrialList
from pilot.io.submission import LaunchSpec, Submission
from pilot.io.verbs import A, R, Verb


class PoolClient:
    """Sends requests to the coordinator that wrote the connection file ``file``, each with a timeout of ``timeout_s``.

    Every method raises :class:`UserError` if the coordinator refuses the request, and :class:`PilotError` if it fails
    or does not answer (then transient). Answers contain text from pilots and scripts; control characters in it are
    escaped here.
    """

    def __init__(self, file: Path, timeout_s: float) -> None:
        self._file = file
        self._timeout_s = timeout_s

    def submit(self, submission: Submission) -> verbs.Submitted:
        """Submit a trainer. When this returns, it is in the journal."""
        return self._ask(verbs.SUBMIT, submission)

    def trainers(self) -> verbs.TrainerList:
        """All trainers, in the order of submission."""
        return self._ask(verbs.LIST, verbs.Nothing())

    def history(self, trainer: str) -> TrainerHistory:
        """A trainer's history."""
        return self._ask(verbs.HISTORY, verbs.OneTrainer(trainer))

    def status(self) -> PoolStatus:
        """The pool, the trainers, the decisions."""
        return self._ask(verbs.STATUS, verbs.Nothing())

    def nodes(self) -> verbs.NodeList:
        """The pool's nodes, and which are set aside."""
        return self._ask(verbs.NODES, verbs.Nothing())

    def clear(self, nodes: Sequence[str]) -> verbs.Cleared:
        """Forget the failures of ``nodes``."""
        return self._ask(verbs.CLEAR, verbs.SomeNodes(nodes=list(nodes)))

    def pilots(self) -> verbs.PilotList:
        """The registered pilots."""
        return self._ask(verbs.PILOTS, verbs.Nothing())

    def wait(self, trainers: Sequence[str] = (), limit_s: float = verbs.LONGEST_WAIT_S) -> verbs.Phases:
        """The phases of ``trainers`` (none given: all) once all have ended, or after ``limit_s`` at the latest."""
        return self._ask(verbs.WAIT, verbs.Wait(list(trainers), limit_s))

    def cancel(self, trainer: str) -> verbs.Cancelled:
        """End a trainer now."""
        return self._ask(verbs.CANCEL, verbs.OneTrainer(trainer))

    def scale(self, pilots: int | None) -> verbs.Scaled:
        """Keep this many pilots; None: as many as the trainers can use."""
        return self._ask(verbs.SCALE, verbs.Pilots(pilots))

    def resume(
        self, trainer: str, launch: LaunchSpec, budget_node_hours: float | None = None, *, from_scratch: bool = False
    ) -> verbs.Standing:
        """Continue a trainer that failed or was cancelled; its script is started as in ``launch``."""
        return self._ask(verbs.RESUME, verbs.Resumption(trainer, launch, budget_node_hours, from_scratch))

    def hold(self, trainer: str) -> verbs.Standing:
        """Take a trainer's nodes away until it is released."""
        return self._ask(verbs.HOLD, verbs.OneTrainer(trainer))

    def release(self, trainer: str) -> verbs.Standing:
        """Give a held trainer nodes again."""
        return self._ask(verbs.RELEASE, verbs.OneTrainer(trainer))

    def remove(self, trainers: Sequence[str]) -> verbs.Removed:
        """Remove trainers that have ended, with their files."""
        return self._ask(verbs.REMOVE, verbs.SomeTrainers(list(trainers)))

    def explain(self, trainer: str) -> verbs.Explained:
        """Why a trainer has the nodes that it has."""
        return self._ask(verbs.EXPLAIN, verbs.OneTrainer(trainer))

    def run_study(self, definition: StudyDefinition) -> StudyStatus:
        """Submit a study. When this returns, it is in the journal."""
        return self._ask(study_verbs.STUDY_RUN, definition)

    def studies(self) -> StudyList:
        """All studies, in the order of submission."""
        return self._ask(study_verbs.STUDIES, verbs.Nothing())

    def trials(self, study: str) -> TrialList:
        """A study and its trials."""
        return self._ask(study_verbs.STUDY_TRIALS, study_verbs.OneStudy(study))

    def stop_study(self, study: str) -> StudyStatus:
        """Stop a study: its trials are shelved where they are."""
        return self._ask(study_verbs.STUDY_STOP, study_verbs.OneStudy(study))

    def resume_study(self, study: str, more: int = 0, space: StudyDefinition | None = None) -> StudyStatus:
        """Continue a study, with ``more`` additional trials; ``space``, if given, must be the study's own."""
        return self._ask(study_verbs.STUDY_RESUME, study_verbs.StudyResumption(study, more, space))

    def down(self) -> verbs.Draining:
        """Begin to drain the pool; the coordinator exits when everything is gone."""
        return self._ask(verbs.DOWN, verbs.Nothing())

    def _ask(self, verb: Verb[A, R], arguments: A) -> R:
        try:
            reply = request(
                self._file, verb.name, msgspec.to_builtins(arguments), self._timeout_s, changes=verb.changes
            )
        except (UnicodeEncodeError, OverflowError) as unsendable:
            raise UserError(f"{verb.name}: invalid argument: {unsendable}") from None
        if reply.error:
            error = UserError if reply.exit_status == UserError.exit_status else PilotError
            raise error(reply.error)
        try:
            return msgspec.convert(all_printable(reply.result), verb.answer)
        except msgspec.ValidationError as error:
            raise PilotError(f"cannot read the coordinator's answer to {verb.name}: {error}") from None
