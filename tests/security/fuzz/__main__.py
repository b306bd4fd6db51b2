"""``make fuzz``: all inputs of all targets, and a table of their outcomes."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.security.fuzz.run import FAILED, evenly, try_all
from tests.security.fuzz.targets import TARGETS

SHOWN = 12


def main() -> int:
    """Exit status 1 if an input failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="targets whose name has this in it")
    parser.add_argument("--number", type=int, help="only this input, with all of its failure")
    parser.add_argument("--few", action="store_true", help="the slice that the tests take")
    options = parser.parse_args()
    failed = 0
    for target in [target for target in TARGETS if options.only in target.name]:
        numbers = evenly(target, target.few) if options.few else range(target.inputs)
        if options.number is not None:
            numbers = range(options.number, options.number + 1)
            print(repr(target.input(options.seed, options.number))[:2000])
        began_s = time.monotonic()
        result = try_all(target, options.seed, numbers)
        counts = ", ".join(f"{count} {word}" for word, count in sorted(result.counts.items()))
        print(f"{target.name:38} {len(numbers):5} inputs  {counts}  ({time.monotonic() - began_s:.0f} s)", flush=True)
        alike = Counter(what for _, what in result.failures)
        for what, count in alike.most_common(SHOWN):
            number = next(number for number, other in result.failures if other == what)
            print(f"    {count:4} × {what}  (first: --number {number})", flush=True)
        failed += result.counts[FAILED]
    print(f"{failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
