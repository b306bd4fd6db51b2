"""Which rung a sampler should be told: ``python -m benchmarks.told_rung``.

Trials of a known quality are chosen by TPE and trained through rungs of 1, 3 and 9 reports by successive halving. What
a trial reports grows with its training and is noisy, less so at higher rungs. *first*: the sampler is told each trial's
value at the first rung. *highest*: the value at the highest rung reached, so that unequally trained trials are
compared. *true*: the value at the last rung, which is unknown in practice, as a bound. *random*: no sampler. Prints the
true quality of the best trial at the end, median over the seeds.
"""

from __future__ import annotations

import argparse
import math
import random
from statistics import median

import optuna

RUNGS = (1, 3, 9)


def quality(trial: optuna.Trial) -> float:
    """At most 1."""
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    width = trial.suggest_int("width", 1, 8)
    decay = trial.suggest_float("decay", 0.0, 1.0)
    return 1.0 - 0.15 * (math.log10(lr) + 2.4) ** 2 - 0.03 * (width - 6) ** 2 / 4 - 0.3 * (decay - 0.3) ** 2


def reported(best: float, reports: int, noise: float, rng: random.Random) -> float:
    """The value of a trial of quality ``best`` after this many reports."""
    return best * (1 - 0.5 / reports) + rng.gauss(0.0, noise / math.sqrt(reports))


def study(told: str, trials: int, noise: float, seed: int) -> float:
    """The quality of the trial that is best at the last rung."""
    rng = random.Random(seed)
    sampler = optuna.samplers.RandomSampler(seed) if told == "random" else optuna.samplers.TPESampler(seed=seed)
    made = optuna.create_study(direction="maximize", sampler=sampler)
    seen: list[list[float]] = [[] for _ in RUNGS]
    complete: list[tuple[float, float]] = []
    for _ in range(trials):
        trial = made.ask()
        best = quality(trial)
        values = [reported(best, reports, noise, rng) for reports in RUNGS]
        reached = 0
        for rung, value in enumerate(values):
            seen[rung].append(value)
            reached = rung
            if sorted(seen[rung], reverse=True).index(value) >= max(1, len(seen[rung]) // 3):
                break
        if reached == len(RUNGS) - 1:
            complete.append((values[-1], best))
        made.tell(trial, {"first": values[0], "highest": values[reached]}.get(told, values[-1]))
    return max(complete)[1]


def main() -> None:
    """Print the table of docs/elastic/studies.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=15)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print("| noise | first | highest | true | random |\n|---|---|---|---|---|")
    for noise in (0.02, 0.1):
        ways = ("first", "highest", "true", "random")
        found = [median(study(told, options.trials, noise, seed) for seed in range(options.seeds)) for told in ways]
        print(f"| {noise} | {' | '.join(f'{value:.3f}' for value in found)} |")


if __name__ == "__main__":
    main()
