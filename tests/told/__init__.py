"""The scripts of the tests that are told something by a look at their code, and whether they train otherwise.

``told.tsv`` has them. Made, and to be repeated, by::

    python -m pytest -p tests.told.collect tests/equivalence tests/unit/train   # writes recorded.jsonl: what is told
    python -m tests.told.oracle                                                # writes told.tsv: how each trains
    python -m tests.told.oracle --summary                                      # counts
    python tests/told/run_one.py ID                                            # runs one as an ordinary program
"""

import os
from pathlib import Path

RECORDED = Path(os.environ.get("TOLD_RECORDED", Path(__file__).with_name("recorded.jsonl")))
TABLE = Path(os.environ.get("TOLD_TABLE", Path(__file__).with_name("told.tsv")))
