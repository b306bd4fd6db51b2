"""The sampler process's other side: reads questions from stdin, writes answers to stdout, ends with its parent."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec

from pilot.core.errors import UserError
from pilot.io.framing import HEAD_BYTES, length_of
from pilot.io.study_definition import Asked
from pilot.service.child_process import end_with_parent, private_stdout, write
from pilot.service.sampler_process import Question
from pilot.study.projection import Projection


def main(lifeline: int) -> None:
    """Answer questions until stdin closes."""
    end_with_parent(lifeline)
    requests, answers = sys.stdin.buffer, private_stdout()
    opened: dict[str, Projection] = {}
    while len(head := requests.read(HEAD_BYTES)) == HEAD_BYTES:
        question = msgspec.msgpack.decode(requests.read(length_of(head)), type=Question)
        try:
            answer = _answer(opened, question)
        except UserError as error:
            answer = Asked(error=str(error))
        except Exception as error:  # whatever a sampler's library raises, the coordinator continues
            logging.exception("the sampler failed")
            opened.pop(question.file, None)
            answer = Asked(error=f"the sampler failed: {type(error).__name__}: {error}", again=True)
        write(answers, msgspec.msgpack.encode(answer))


def _answer(opened: dict[str, Projection], question: Question) -> Asked:
    if question.definition is not None:
        opened[question.file] = Projection(question.definition, Path(question.file), question.known)
    projection = opened[question.file]
    if question.tell:
        projection.tell(question.number, question.value)
        return Asked()
    return projection.ask(question.number)


if __name__ == "__main__":
    main(int(sys.argv[1]))
