"""How far a training is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Position:
    """``step``: steps applied so far; ``phase``: how many optimizers of the next step have been stepped, if they are
    stepped separately; ``cursor``: samples of ``epoch`` used so far; ``epoch_steps``: its steps so far; ``samples``: of
    all epochs; ``at_end``: the script is in its code at the end of the epoch; ``met``: how often the ranks had met
    between the last step and that; ``stopped``: there are no more epochs, or steps; ``stopping``: a rank has asked for
    that; ``left``: the ranks have left the loop, and meet no more; ``begun``: the script has reached its first batch;
    ``weight``: the sum of the last step's weights, 0: its samples are the weights (see
    :mod:`pilot.train.steps.weights`), None: there was no step yet. ``parts``: among how many ranks the last step's
    samples were divided, 0: likewise.
    """

    step: int = 0
    epoch: int = 0
    cursor: int = 0
    epoch_steps: int = 0
    samples: int = 0
    at_end: bool = False
    met: int = 0
    stopped: bool = False
    stopping: bool = False
    left: bool = False
    phase: int = 0
    begun: bool = False
    weight: float | None = None
    parts: int = 0
