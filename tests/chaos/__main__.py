"""``make chaos [SEED=1] [MINUTES=10]``: several trainers on local pilots in a seeded random storm."""

from __future__ import annotations

import argparse
import sys

from tests.chaos.record import recorded
from tests.chaos.run import chaos

EPOCHS_A_MINUTE = 50


def main() -> int:
    """Exit status 1 if an invariant is violated; the same seed draws the same storm."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    arguments = parser.parse_args()
    seed, minutes = arguments.seed, arguments.minutes
    print(f"seed {seed}, {minutes:g} minutes", flush=True)
    epochs = max(1, round(EPOCHS_A_MINUTE * minutes))
    violations = recorded(seed, lambda pool, note, root: chaos(pool, seed, 60 * minutes, epochs, note, root=root))
    for line in violations:
        print(f"FAILED: {line}")
    print(f"seed {seed}: {'FAILED' if violations else 'clean'}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
