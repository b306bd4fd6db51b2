"""The name of MPICH's shared-memory segment is known before the segment is there: of ranks that die in MPI_Init."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from launchers import hydra
from pilot.agent.workdir import remove_segments
from pilot.comm.segment import announce, segment_name
from pilot.io import proc

DIES = """
import os, signal
from pilot.comm import mpi
from pilot.comm.segment import announce
announce(os.environ)
mpi._forget_segments = lambda: os.kill(os.getpid(), signal.SIGKILL)
mpi.start()
"""


def test_a_rank_that_dies_in_mpi_init_leaves_what_it_announced(tmp_path: Path) -> None:
    note = tmp_path / "segments"
    mpiexec = Path(sys.executable).parent / "mpiexec"
    command = [mpiexec, "-hosts", "localhost:1,127.0.0.1:1", "-launcher", "fork", sys.executable, "-c", DIES]
    variables = hydra.environment(one_machine=True) | {"PILOT_SEGMENTS": str(note)}
    subprocess.run(command, env=os.environ | variables, check=False, capture_output=True, timeout=60)
    announced = [proc.SHARED_MEMORY / name for name in note.read_text().split()]
    assert len(announced) == 2
    assert all(path.exists() for path in announced)
    remove_segments(note)
    assert not any(path.exists() for path in announced)


def test_the_name_is_that_of_mpich_5() -> None:
    assert segment_name("kvs_31581_0_53872661_vm", 1) == "mpich_shm_a0c3461a_1"  # seen mapped in a rank


def test_nothing_is_announced_without_an_agent_or_without_hydra(tmp_path: Path) -> None:
    note = tmp_path / "segments"
    announce({"PILOT_SEGMENTS": str(note)})
    announce({"PMI_FD": "99", "PMI_RANK": "0"})
    assert not note.exists()
