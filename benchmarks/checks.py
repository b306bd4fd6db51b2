"""What the check at submission costs: each ported script trains in a pool of one node, and is checked there meanwhile.

Prints how long the trainer stayed on one node because of it, what came of the check, and how many samples a second it
trained beside the check, and in the same time after it.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pilot.core.pool.evidence import headline
from pilot.core.trainer.proof import ProofState
from pilot.protocol.pool_status import TrainerStatus
from tests.pools import Pool
from tests.ported.pairs import PAIRS, Pair

LIMIT_S = 120
DEADLINE_S = 600.0
AFTER_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="of ported scripts (default: all)")
    parser.add_argument("--limit-s", type=int, default=LIMIT_S)
    given = parser.parse_args()
    print("script\tseconds on one node\tsamples/s beside\tafter\tcheck")
    with tempfile.TemporaryDirectory(prefix="checks-") as folder:
        pool = Pool(Path(folder), check="auto", check_limit_s=given.limit_s)
        pool.up()
        try:
            pool.agent()
            for pair in PAIRS:
                if not given.names or pair.name in given.names:
                    print(_line(pool, pair), flush=True)
        finally:
            pool.end()


def _line(pool: Pool, pair: Pair) -> str:
    endless = ("--max-iters" if pair.by_iteration else "--epochs", "100000")
    pool.submit(pair.elastic, *endless, options=("--name", pair.name, *pool.gains()))
    status = pool.until("it trains, or has failed", lambda s: _trains_or_ended(s.trainer(pair.name)), DEADLINE_S)
    first, begun_s = status.trainer(pair.name), status.now_s
    if first.ended_s is not None:
        return f"{pair.name}\t-\t-\t-\t{headline(first.reason)}"
    status = pool.until("its check is over", lambda s: s.trainer(pair.name).check not in _OPEN, DEADLINE_S)
    then, over_s = status.trainer(pair.name), status.now_s
    status = pool.until("it trains on", lambda s: s.now_s >= over_s + AFTER_S, DEADLINE_S)
    last, took_s = status.trainer(pair.name), over_s - begun_s
    beside, after = (then.samples - first.samples) / took_s, (last.samples - then.samples) / (status.now_s - over_s)
    pool.pilot("cancel", pair.name)
    pool.pilot("wait", pair.name, check=False)
    return f"{pair.name}\t{took_s:.0f}\t{beside:.0f}\t{after:.0f}\t{then.check_text}"


_OPEN = ProofState.WAITING, ProofState.RUNNING


def _trains_or_ended(trainer: TrainerStatus) -> bool:
    return trainer.ended_s is not None or trainer.check is not ProofState.WAITING


if __name__ == "__main__":
    main()
