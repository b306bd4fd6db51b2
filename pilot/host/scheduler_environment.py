"""Which variables of a shell reach a batch scheduler's commands, and with them the jobs.

``sbatch``, ``qsub`` and ``bsub`` take options from variables, which beat the lines of a script; with others, users
choose what ``squeue`` or ``bjobs`` print. Inside a job, dozens describe that job. Commands of ours get none of them, so
they do what the site file says from every shell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

LAUNCHERS = ("PMI_", "PMIX_", "PALS_", "HYDI_", "HYDRA_", "MPIEXEC_", "MPI_LOCAL", "I_MPI_", "OMPI_", "JSM_")
"""Prefixes of the variables that make a process a rank of a launcher's world."""

_SLURM = (
    *("SLURM", "_SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SCRON_", "SQUEUE_", "SINFO_", "SACCT_", "SACCTMGR_"),
    *("SCANCEL_", "SCONTROL_", "SPRIO_", "SSHARE_", "SSTAT_", "SREPORT_", "SDIAG_", "SATTACH_", "SBCAST_", "SPANK_"),
)
_PBS = ("PBS_", "PBSPRO_")
_LSF = ("LSB_", "LSF_", "BSUB_", "BJOBS_", "LS_JOBPID", "LS_SUBCWD", "LS_EXEC_T", "LS_PROCESS_START")
_OTHERS = (*_SLURM, *_PBS, *_LSF, *LAUNCHERS)

_FIND_THE_CLUSTER = {
    *("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_JWKS"),
    *("PBS_CONF_FILE", "PBS_EXEC", "PBS_HOME", "PBS_SERVER", "PBS_DEFAULT", "PBS_PRIMARY", "PBS_SECONDARY"),
    *("PBS_SERVER_HOST_NAME", "PBS_PUBLIC_HOST_NAME", "PBS_BATCH_SERVICE_PORT", "PBS_LEAF_NAME", "PBS_LEAF_ROUTERS"),
    *("PBS_AUTH_METHOD", "PBS_SUPPORTED_AUTH_METHODS", "PBS_ENCRYPT_METHOD", "PBS_ENCRYPT_MODE"),
    *("LSF_ENVDIR", "LSF_SERVERDIR", "LSF_BINDIR", "LSF_LIBDIR", "LSF_CONFDIR", "LSF_TOP"),
}
"""Also those that authenticate a user there."""

ACCOUNTS: Mapping[str, tuple[str, ...]] = {
    "slurm": ("SBATCH_ACCOUNT", "SLURM_ACCOUNT"),
    "pbspro": ("PBS_ACCOUNT",),
    "lsf": ("LSB_DEFAULTPROJECT",),
}
"""By scheduler, the variables whose account a site takes if it names none."""


def for_commands(inherited: Mapping[str, str]) -> dict[str, str]:
    """The part of ``inherited`` that a scheduler's command gets."""
    return {name: value for name, value in inherited.items() if not _is_dropped(name)}


def clear() -> None:
    """Remove the other variables from this process: Parsl's commands, and pilots that are local processes, inherit its
    environment."""
    for name in filter(_is_dropped, list(os.environ)):
        del os.environ[name]


def account(scheduler: str, inherited: Mapping[str, str]) -> tuple[str, str] | None:
    """The account that a user of ``scheduler`` has chosen for all jobs, with the variable's name; None: there is none.

    One that is not a single word would be more than an account in a job's script.
    """
    for name in ACCOUNTS.get(scheduler, ()):
        if len(inherited.get(name, "").split()) == 1:
            return inherited[name].strip(), name
    return None


def _is_dropped(name: str) -> bool:
    return name.startswith(_OTHERS) and name not in _FIND_THE_CLUSTER
