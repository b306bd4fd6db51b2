"""Which of a shell's variables scheduler commands and jobs get."""

from __future__ import annotations

import os
import sys

import pytest

from pilot.host import scheduler_environment
from pilot.host.commands import run_command

DROPPED = """
SBATCH_PARTITION SBATCH_TIMELIMIT SBATCH_EXPORT SBATCH_ARRAY_INX SBATCH_ACCOUNT SLURM_EXPORT_ENV SLURM_MEM_PER_CPU
SLURM_JOB_ID SLURM_CPU_BIND SLURM_TIME_FORMAT SLURMD_NODENAME SRUN_CPUS_PER_TASK SALLOC_PARTITION SLURM_UNHEARD_OF
SQUEUE_FORMAT SQUEUE_STATES SINFO_FORMAT SACCT_FORMAT SCANCEL_STATE SCANCEL_PARTITION SCONTROL_ALL
PBS_JOBID PBS_QUEUE PBS_DPREFIX PBS_ACCOUNT PBS_NODEFILE PBS_O_HOST PBS_ENVIRONMENT
LSB_JOBID LSB_DEFAULTQUEUE LSB_SUB_PROJECT_NAME LSB_BJOBS_FORMAT BSUB_QUIET LSF_JOB_TIMESTAMP_VALUE LS_SUBCWD
PMI_RANK PMIX_NAMESPACE PALS_RANKID OMPI_COMM_WORLD_RANK HYDI_CONTROL_FD MPI_LOCALRANKID JSM_NAMESPACE_RANK
"""
KEPT = """
PATH HOME LS_COLORS LSCOLORS OMP_NUM_THREADS CUDA_VISIBLE_DEVICES PILOT_RUN_DIR PBSX SLINGSHOT_VNIS
SLURM_CONF SLURM_CLUSTERS SLURM_JWT PBS_SERVER PBS_CONF_FILE PBS_EXEC PBS_PRIMARY LSF_ENVDIR LSF_SERVERDIR LSF_BINDIR
"""


def test_only_variables_that_find_the_cluster_reach_a_scheduler() -> None:
    kept = dict.fromkeys(KEPT.split(), "x")
    assert scheduler_environment.for_commands(kept | dict.fromkeys(DROPPED.split(), "x")) == kept


@pytest.mark.parametrize("name", ["SCANCEL_STATE", "SBATCH_PARTITION", "PBS_QUEUE", "SLURM_CONF"])
def test_our_commands_and_this_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    asked = [sys.executable, "-c", f"import os; print({name!r} in os.environ)"]
    assert run_command(asked, 20) == f"{name in KEPT.split()}\n"
    scheduler_environment.clear()
    assert (name in os.environ) == (name in KEPT.split())


@pytest.mark.parametrize(
    ("scheduler", "shell", "account"),
    [
        ("slurm", {"SBATCH_ACCOUNT": "a", "SLURM_ACCOUNT": "b"}, ("a", "SBATCH_ACCOUNT")),
        ("slurm", {"SBATCH_ACCOUNT": "", "SLURM_ACCOUNT": "b"}, ("b", "SLURM_ACCOUNT")),
        ("slurm", {"SBATCH_ACCOUNT": "a\n#SBATCH --partition=high"}, None),
        ("pbspro", {"SBATCH_ACCOUNT": "a", "PBS_ACCOUNT": "c"}, ("c", "PBS_ACCOUNT")),
        ("lsf", {"LSB_DEFAULTPROJECT": "d"}, ("d", "LSB_DEFAULTPROJECT")),
        ("local", {"SBATCH_ACCOUNT": "a"}, None),
    ],
)
def test_the_account_of_a_user(scheduler: str, shell: dict[str, str], account: tuple[str, str] | None) -> None:
    assert scheduler_environment.account(scheduler, shell) == account
