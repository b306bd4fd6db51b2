"""A template for site files: copy it to ~/.config/pilot/sites/NAME.py, keep only the fields that differ from the
default, and run

    pilot sites check ~/.config/pilot/sites/NAME.py     # every mistake, with the field and an example
    pilot sites show NAME                               # the exact script that would be submitted

A site that differs only slightly from a shipped one can be derived from it::

    from site_configs.delta import site as delta
    site = delta.replace(account="abcd-delta-gpu")

If Parsl's own provider does not fit, define one; what runs on the node comes from ``launchers.steps``::

    def provider(site):
        from pilot.provisioning.provider import make_provider
        ours = make_provider(site)
        ours.regex_job_id = r"Job (?P<id>\\d+) accepted"
        return ours
"""

from pilot.site.site import Site

site = Site(
    # --- the queue -------------------------------------------------------------------------------------------------
    name="example",  # the site's name: pilot up --site NAME
    description="an example that explains every field",  # one line for pilot sites
    scheduler="slurm",  # local | slurm | pbspro | lsf
    partition="preempt",  # Slurm's partition
    queue=None,  # the queue of PBS or LSF; not for Slurm
    qos="preempt",  # Slurm's QOS
    account="abcd-gpu",  # the project to charge (LSF: -P)
    walltime="24:00:00",  # HH:MM:SS that a pilot requests; make it long: a pilot leaves when it is not needed
    walltime_min="00:30:00",  # shortest pilot, for a window before another job (Slurm, PBS); None: always walltime
    guaranteed_s=600,  # run time before which a job is not preempted; 0: no promise (shown by pilot sites show)
    max_jobs=20,  # most jobs, running or queued: the site's limit, or your own (default 100)
    max_jobs_scope="user",  # whose jobs count: user | project (colleagues' jobs, too)
    charge_factor=0.5,  # charge for an hour, relative to the regular queue (shown by pilot sites show)
    requeue=False,  # whether the scheduler may restart a preempted job; the coordinator replaces it in any case
    exclusive=True,  # whole nodes (Slurm; with PBS and LSF the queue decides)
    # Further directives, one per line; request memory and GPUs here.
    scheduler_options="#SBATCH --constraint=gpu\n#SBATCH --gpus-per-node=4\n#SBATCH --mem=0",
    select_options="",  # PBS only: appended to the select line, e.g. "ngpus=4:system=polaris"
    # --- preemption ------------------------------------------------------------------------------------------------
    notice_signal="USR1",  # the signal that announces preemption (Slurm: --signal); None: request none (TERM may come)
    notice_lead_s=300,  # how long before the end of the wall time the signal comes
    grace_s=300,  # from the notice to SIGKILL; 0: killed without notice; PBS: 8 unless given (its kill_delay is 10)
    # --- the node --------------------------------------------------------------------------------------------------
    nodes_per_pilot=1,  # nodes per job: more than 1 only if max_jobs is too low for single-node jobs
    cores_per_node=64,  # CPUs per node as the scheduler counts them
    only_nodes=None,  # pilots run only on these, e.g. "nid[0001-0512],login*"
    topology=r"(x\d+)c(\d+)",  # parts of a host's name that nearby hosts share, largest first; None: not known
    ranks_per_node=4,  # training processes per node: one per GPU; 1 without GPUs
    node_fabric="nccl",  # how they sum gradients: shared-memory | gloo | nccl; None: NCCL on GPUs, else shared memory
    between_nodes="mpi",  # how nodes sum them: mpi | gloo (on CPUs) | nccl (on GPUs); see docs/admin/gpu-nodes.md
    launcher="srun",  # simple (the script's node is the job's node) | srun | pals | mpiexec | jsrun
    launcher_options="",  # more options for the launcher
    prologue="module load conda\nconda activate base",  # shell lines before the agent: modules, environments
    memory_gb=0,  # of an accelerator, or of a node without any, where pilots cannot find it out; 0: not known
    # Types of nodes, each with the fields in which it differs (docs/admin/types-and-pools.md); pilot up takes a40:16
    node_types={"a100": {"partition": "gpuA100x4-preempt"}, "a40": {"partition": "gpuA40x4-preempt", "max_jobs": 10}},
    python="/projects/abcd/venv/bin/python",  # interpreter on the nodes; None: the coordinator's
    scratch_dir="/tmp",  # on the node, for sockets and temporary files; keep it short; None: the job's TMPDIR
    checkpoint_dir="/projects/abcd/checkpoints",  # on the shared file system; None: in the run directory
    # --- the network -----------------------------------------------------------------------------------------------
    bind_address=None,  # address on which the coordinator listens; or give its interface
    bind_interface="hsn0",  # the login node's interface that compute nodes can reach; None and no address: all
    advertise_interface="hsn0",  # the interface whose address agents connect to; None: the bound one
    port=0,  # the coordinator's port; 0: any free one
    interface="hsn0",  # the node's interface for MPI, or several: "hsn0,hsn1"; None: the default one
    rails=4,  # MPI processes per node, on the interfaces in turn; None: one each, up to 4 if node_fabric is nccl
    fabric="tcp",  # libfabric's provider between separate jobs; native ones often do not work across jobs
    # --- times -----------------------------------------------------------------------------------------------------
    poll_s=30,  # shortest interval between polls of the scheduler
    command_timeout_s=30,  # time after which a scheduler command counts as not answering
    heartbeat_s=5,  # how often an agent reports that it is alive
    silent_s=30,  # a node silent for this long is lost; a rank that others wait for this long is examined
    orphan_s=300,  # an agent without its coordinator for this long checkpoints and leaves
    form_timeout_s=60,  # time limit for a group's members to find each other
    checkpoint_interval_s=300,  # longest time between two checkpoints of a trainer
    checkpoints_kept=3,  # per trainer
    # --- new scripts -----------------------------------------------------------------------------------------------
    check="auto",  # auto | require | off: check scripts before they get a second node; see pilot submit --check
    check_limit_s=120,  # time limit for such a check; it runs on one core beside training
    # --- sources of these facts --------------------------------------------------------------------------------------
    source="https://docs.example.org/queues, read 2026-11-20",  # document and date
    second_hand=("charge_factor: from a user's script",),  # facts that have not been verified
    retired="",  # why jobs can no longer be submitted; such a site is only for replays
)
