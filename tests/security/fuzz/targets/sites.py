"""Site files: loaded, and their batch scripts rendered; all output is one line."""

from __future__ import annotations

import os
import random
import re
from contextlib import suppress
from pathlib import Path

from launchers.batch import batch_script
from pilot.cli.sites import _remarks
from pilot.site.site_files import load_site_file, site_mistakes
from tests.security.fuzz.mutate import changed_bytes
from tests.security.fuzz.target import ACCEPTED, Target, Wrong, check_line

FILE = '''"""A machine."""
from pilot.site.site import Site

site = Site(
    name="polaris",
    description="a machine",
    scheduler="slurm",
    partition="preempt",
    account="abcd",
    walltime="01:30:00",
    walltime_min="00:10:00",
    guaranteed_s=600,
    max_jobs=20,
    charge_factor=0.5,
    requeue=False,
    scheduler_options="#SBATCH --constraint=gpu",
    notice_signal="USR1",
    notice_lead_s=300,
    grace_s=30,
    cores_per_node=64,
    ranks_per_node=4,
    launcher="srun",
    prologue="module load conda",
    python="/usr/bin/python3",
    scratch_dir="/local/scratch",
    bind_interface="bond0",
    port=0,
    interface="hsn0",
    fabric="tcp",
    poll_s=30,
    heartbeat_s=5,
    silent_s=30,
    orphan_s=300,
    checkpoints_kept=3,
    source="docs, 2026-03-01",
    second_hand=("charge_factor: a guess",),
    retired="",
)


def provider(site):
    return None
'''
WORDS = [
    "None", "True", "-1", "0", "1", "2**63", "10**30", "10**5000", "1e308", "float('nan')", "float('inf')", "-1e-320",
    "''", "'x'", "'\\0'", "'a\\nb'", "'\\x1b[2J'", "'\\ud800'", "'x' * 10**6", "b'x'", "'١١:00:00'", "'99:59:59'",
    "[]", "{}", "()", "object()", "Site", "print", "...", "lambda: 0", "1j", "[1, [2]]", "{1}", "range(10**9)", "1/0",
    "undefined", "exit()", "exit(0)", "Site()", "Site(name=5)", "(_ for _ in ())", "__import__('nothing')",
    "(lambda f: f(f))(lambda f: f(f))", "'slurm'", "'lsf'", "'pbspro'", "'local'", "1 'x'", "'\\d' is 'x'", "5()",
]  # fmt: skip
LINES = [
    "raise KeyboardInterrupt", "raise SystemExit(3)", "raise BaseException", "raise ValueError('a\\nb')", "del site",
    "site = Site", "site = None", "import nothing", "from pilot.site.site import nothing", "provider = 5",
    "assert False", "raise Exception", "raise SyntaxError", "raise SyntaxError('x', ('f', None, None, None))",
    "return", "\tx", "  x", "class E(Exception):\n    __str__ = None\nraise E", "import warnings; warnings.warn('w')",
    "raise GeneratorExit", "# coding: nothing", "x = '\\d'", "site = type('S', (Site,), {})",
    "raise ExceptionGroup('g', [ValueError()])", "Site(name='y', second_hand=[5])",
    "import msgspec\nmsgspec.convert({'x': {}}, dict[str, int])",
]  # fmt: skip


def make(rng: random.Random, _number: int) -> bytes:
    """The file with a value, a line or some bytes changed."""
    match rng.randrange(4):
        case 0:
            return changed_bytes(rng, FILE.encode())
        case 1:
            lines = FILE.splitlines(keepends=True)
            lines.insert(rng.choice((0, 3, len(lines))), rng.choice(LINES) + "\n")
            return "".join(lines).encode()
        case 2:
            fields = [*re.findall(r"^    (\w+)=", FILE, re.MULTILINE), "nothing", "nodes_per_pilot", "qos"]
            return FILE.replace(
                "site = Site(\n", f"site = Site(\n    {rng.choice(fields)}={rng.choice(WORDS)},\n"
            ).encode()
        case _:
            values = list(re.finditer(r"=(.+),$", FILE, re.MULTILINE))
            found = rng.choice(values)
            return (FILE[: found.start(1)] + rng.choice(WORDS) + FILE[found.end(1) :]).encode("utf-8")


def attempt(folder: Path, content: bytes) -> str:
    """Load it as all commands do, and check it as ``pilot sites check`` does."""
    (path := folder / "mine.py").write_bytes(content)
    before = os.fstat(2).st_size
    with suppress(KeyboardInterrupt):
        for mistake in site_mistakes(str(path)):
            check_line(mistake)
    if os.fstat(2).st_size != before:
        raise Wrong("something was printed")
    try:
        loaded = load_site_file(str(path))
    except KeyboardInterrupt:  # the command ends as with Ctrl-C
        return "interrupted"
    batch_script(loaded.site, "/run/connection.json", python="python")
    for remark in _remarks(loaded):
        check_line(remark)
    return ACCEPTED


TARGET = Target("site files", 700, 80, attempt, make)
