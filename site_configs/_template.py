"""A site file to start from: copy it to ~/.config/pilot/sites/NAME.py, keep what differs from the default, and run

    pilot sites check ~/.config/pilot/sites/NAME.py     # every mistake, with the field and an example
    pilot sites show NAME                               # the exact script that would be submitted

A site that differs little from a shipped one can be made from it::

    from site_configs.delta import site as delta
    site = delta.replace(account="abcd-delta-gpu")

Where the ordinary Parsl provider does not fit, define one; what runs on the node comes from ``launchers.steps``::

    def provider(site):
        from pilot.provisioning.provider import make_provider
        ours = make_provider(site)
        ours.regex_job_id = r"Job (?P<id>\\d+) accepted"
        return ours
"""

from pilot.io.site import Site

site = Site(
    # --- the queue -------------------------------------------------------------------------------------------------
    name="example",  # how users call the site: pilot up --site example
    description="an example that explains every field",  # one line for pilot sites
    scheduler="slurm",  # local | slurm | pbspro | lsf
    partition="preempt",  # Slurm's partition
    queue=None,  # the queue of PBS or LSF; on Slurm leave it out
    qos="preempt",  # Slurm's QOS
    account="abcd-gpu",  # the project that is charged (LSF: -P)
    walltime="24:00:00",  # HH:MM:SS that a pilot asks for: long, as a pilot leaves when it is not needed
    walltime_min="00:30:00",  # a pilot may be as short where a window before another job is (Slurm, PBS); None: never
    guaranteed_s=600,  # a job is not preempted before it has run so long; 0: no promise (pilot sites show tells users)
    max_jobs=20,  # cap on jobs, running or waiting: the site's, or what you think fit (100 unless given)
    max_jobs_scope="user",  # whose jobs the cap counts: user | project (then colleagues' jobs count too)
    charge_factor=0.5,  # what an hour is charged, against the ordinary queue (pilot sites show tells users)
    requeue=False,  # whether the scheduler may restart a preempted job; the coordinator replaces it in any case
    exclusive=True,  # whole nodes (Slurm; the queues of PBS and LSF decide by themselves)
    # Further directives, one a line. Memory and GPUs are asked for here.
    scheduler_options="#SBATCH --constraint=gpu\n#SBATCH --gpus-per-node=4\n#SBATCH --mem=0",
    select_options="",  # PBS only: appended to the select line, e.g. "ngpus=4:system=polaris"
    # --- being preempted -------------------------------------------------------------------------------------------
    notice_signal="USR1",  # the signal that announces it (Slurm: --signal); None: none is asked for (TERM may come)
    notice_lead_s=300,  # how long before the end of the wall time that signal comes
    grace_s=300,  # from the notice to SIGKILL; 0: killed without notice; PBS: 8 unless given (its kill_delay is 10)
    # --- the node --------------------------------------------------------------------------------------------------
    nodes_per_pilot=1,  # nodes per job: more only where the cap on jobs is too tight for single nodes
    cores_per_node=64,  # CPUs that the scheduler counts per node
    ranks_per_node=4,  # training processes per node: one per GPU; 1 where there is none
    node_fabric="nccl",  # how these sum: shared-memory | gloo | nccl; None: NCCL on GPUs, else shared memory
    launcher="srun",  # simple (the script's node is the job's node) | srun | pals | mpiexec | jsrun
    launcher_options="",  # further options of the launcher
    prologue="module load conda\nconda activate base",  # shell lines before the agent: modules, environments
    python="/projects/abcd/venv/bin/python",  # the nodes' interpreter; None: the one that runs the coordinator
    scratch_dir="/tmp",  # on the node, for sockets and temporary files: short; None: TMPDIR as the job has it
    checkpoint_dir="/projects/abcd/checkpoints",  # on the shared file system; None: in the run directory
    # --- the network -----------------------------------------------------------------------------------------------
    bind_address=None,  # where the coordinator listens; or give its interface
    bind_interface="hsn0",  # the login node's interface that compute nodes reach; None and no address: all
    advertise_interface="hsn0",  # the interface whose address agents are told; None: the bound one
    port=0,  # the coordinator's port; 0: any free one
    interface="hsn0",  # the node's interface for MPI; None: the default one
    fabric="tcp",  # libfabric's provider between separate jobs; native ones often cannot cross jobs
    # --- times -----------------------------------------------------------------------------------------------------
    poll_s=30,  # how often the scheduler is asked, at most
    command_timeout_s=30,  # after which one of its commands counts as not answering
    heartbeat_s=5,  # how often an agent says that it lives
    silent_s=30,  # after so long without a word, a node is lost; when others wait so long for a rank, it is looked at
    orphan_s=300,  # after so long without the coordinator, an agent checkpoints and leaves
    form_timeout_s=60,  # within which a group must form
    checkpoint_interval_s=300,  # between checkpoints of a trainer
    checkpoints_kept=3,  # of each trainer
    # --- where the facts are from ----------------------------------------------------------------------------------
    source="https://docs.example.org/queues, read 2026-11-20",  # document and day
    second_hand=("charge_factor: from a user's script",),  # facts that nobody here has checked
    retired="",  # why it can no longer be submitted to; such a site serves replays
)
