"""The sampler process's other side: reads questions from stdin, writes answers to stdout, ends with its parent."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from pilot.core.errors import UserError
from pilot.service.planning.child_process import Parent
from pilot.service.planning.sampler_process import SamplerRequest
from pilot.study.projection import Projection
from pilot.submission.study_definition import Asked


def main(lifeline: int) -> None:
    """Answer questions until stdin closes."""
    parent = Parent(lifeline)
    opened: dict[str, Projection] = {}
    for question in parent.questions(SamplerRequest):
        try:
            answer = _answer(opened, question)
        except UserError as error:
            answer = Asked(error=str(error))
        except Exception as error:  # whatever a sampler's library raises, the coordinator continues
            logging.exception("the sampler failed")
            opened.pop(question.file, None)
            answer = Asked(error=f"the sampler failed: {type(error).__name__}: {error}", again=True)
        parent.answer(answer)


def _answer(opened: dict[str, Projection], question: SamplerRequest) -> Asked:
    if question.definition is not None:
        opened[question.file] = Projection(question.definition, Path(question.file), question.known)
    projection = opened[question.file]
    if question.tell:
        projection.tell(question.number, question.value)
        return Asked()
    return projection.ask(question.number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
