"""The pairs, and the generated part of ``examples/ported/README.md``: ``make tables`` writes it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "ported"
README = FOLDER / "README.md"
BEGIN, END = "<!-- generated: ported -->\n", "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Pair:
    """``title``: its common name; ``notes``: remarks on the elastic version."""

    name: str
    title: str
    notes: str = ""

    @property
    def elastic(self) -> Path:
        return FOLDER / f"{self.name}.py"

    @property
    def by_iteration(self) -> bool:
        return "session.iterations(" in self.elastic.read_text()

    def changes(self) -> list[str]:
        """The removed lines (``-``) and the added ones (``+``)."""
        plain = (FOLDER / f"{self.name}_plain.py").read_text().splitlines()
        lines = difflib.unified_diff(plain, self.elastic.read_text().splitlines(), n=0, lineterm="")
        return [line for line in lines if not re.match(r"---|\+\+\+|@@", line)]

    def written(self) -> list[str]:
        """The lines of :meth:`changes` that one has to write; blank ones do not count."""
        return [line for line in self.changes() if line.startswith("+") and line[1:].strip()]


PAIRS = [
    Pair("mnist", "MNIST with a scheduler", "The scheduler's step is the session's, once per epoch."),
    Pair("mnist_rnn", "MNIST with an RNN"),
    Pair(
        "transformer_lm",
        "A Transformer language model",
        "Gradients are clipped by the session: they exist after the sum.",
    ),
    Pair(
        "lstm_lm",
        "An LSTM language model",
        "The hidden state runs along the text, column by column. When the group changes it begins anew on ranks whose"
        " columns change, as it does in each epoch.",
    ),
    Pair("vae", "A variational auto-encoder", "Its loss is a sum over the batch; a session takes means."),
    Pair(
        "dcgan",
        "DCGAN",
        "Two models and two optimizers have names. Batch norm sees each rank's own batch, as with DDP.",
    ),
    Pair("super_resolution", "Super resolution", "What comes after the loop runs to its end on rank 0."),
    Pair(
        "nanogpt",
        "nanoGPT",
        "It counts iterations, and sets its rate by itself; gradients accumulate by `micro_batch_size`.",
    ),
    Pair("mingpt", "minGPT", "Samples are drawn with replacement, without end."),
    Pair(
        "finetune",
        "A fine-tuning loop",
        "The best result so far is in `session.state`, so it survives what befalls a node.",
    ),
    Pair("lbfgs", "A regression with LBFGS", "Refused when the session is made; it says so in one line."),
]


def ported() -> str:
    """The generated part: a section for each pair."""
    return "".join(map(_section, PAIRS))


def _section(pair: Pair) -> str:
    counted = f"[`{pair.name}.py`]({pair.name}.py), {len(pair.written())} lines"
    notes = f" {pair.notes}" if pair.notes else ""
    diff = "\n".join(line for line in pair.changes() if line[1:].strip())
    return f"\n## {pair.title}\n\n{counted}.{notes}\n\n```diff\n{diff}\n```\n"


def rewritten(text: str) -> str:
    """The document ``text`` with up-to-date sections."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + ported() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    README.write_text(rewritten(README.read_text()))
