"""The scripts of the tests that are told something by a look at their code, and whether they train otherwise.

``told.tsv`` has them. Made, and to be repeated, by::

    python -m pytest -p tests.told.collect tests/equivalence tests/unit/train   # writes recorded.jsonl: what is told
    python -m tests.told.oracle                                                # writes told.tsv: how each trains
    python -m tests.told.oracle --summary                                      # counts
    python tests/told/run_one.py ID                                            # runs one as an ordinary program

A row's ``courses`` are those in which it trains otherwise; what is compared are the parameters, buffers and optimizer
state at the end, and the number of steps, not ``session.state``. "same" says that nothing differs in this script, which
may be made so that nothing follows from what it is told.

The table has no rows of test_before_the_loop, test_between_steps, test_composed, test_growing, test_identity,
test_loops, test_next_step, test_node_fabrics, test_real_ranks, test_refused_*, test_rehearsal, test_rows, test_several,
test_trained_set, test_weights, and of unit/train/test_storm and test_group: these take long, and are there for other
things than what is told.
"""

import os
from pathlib import Path

RECORDED = Path(os.environ.get("TOLD_RECORDED", Path(__file__).with_name("recorded.jsonl")))
TABLE = Path(os.environ.get("TOLD_TABLE", Path(__file__).with_name("told.tsv")))
